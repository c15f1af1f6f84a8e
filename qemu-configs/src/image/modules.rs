//! Who needs whom among kernel modules, from `modules.dep`; which a guest can't do without, and which it loads often.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

/// Needed before the root file system is there, in this order.
pub const EARLY: [&str; 6] =
    ["virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "erofs", "overlay"];
/// The guest is of no use without these.
const REQUIRED: [&str; 3] = ["mlx5_core", "mlx5_ib", "ib_uverbs"];
/// Loaded by many guests, so that it matters how long that takes.
const OFTEN: [&str; 60] = [
    "ib_umad",
    "rdma_ucm",
    "ib_ipoib",
    "virtio_net",
    "ib_cm",
    "ib_core",
    "ib_iser",
    "ib_isert",
    "ib_srp",
    "ib_srpt",
    "iw_cm",
    "rdma_cm",
    "rdma_rxe",
    "siw",
    "rds",
    "rds_rdma",
    "rds_tcp",
    "nvme",
    "nvme_rdma",
    "nvmet",
    "nvmet_rdma",
    "nfs",
    "nfsd",
    "nfsv4",
    "rpcrdma",
    "sd_mod",
    "smc",
    "smc_diag",
    "qemu_fw_cfg",
    "vfio",
    "vfio_pci",
    "vfio_iommu_type1",
    "uio",
    "uio_pci_generic",
    "virtio_rng",
    "crc32_generic",
    "crc32c_intel",
    "crc32_pclmul",
    "crc64",
    "configfs",
    "fuse",
    "loop",
    "tun",
    "veth",
    "dummy",
    "bridge",
    "bonding",
    "macvlan",
    "8021q",
    "vxlan",
    "sch_netem",
    "sch_mqprio",
    "sch_ingress",
    "cls_flower",
    "act_gact",
    "act_mirred",
    "ptp",
    "xdp_diag",
    "tcp_diag",
    "af_packet",
];

/// What guests load often, as far as a kernel has it.
pub fn names() -> impl Iterator<Item = &'static str> {
    EARLY.into_iter().chain(REQUIRED).chain(OFTEN)
}

/// `modules.dep`: path of each module, and the paths of those that must be loaded before it.
#[derive(Debug, Default)]
pub struct Dependencies {
    paths: BTreeMap<String, String>,
    needs: BTreeMap<String, Vec<String>>,
}

impl Dependencies {
    /// Parses `modules.dep`.
    pub fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            if let Some((path, needs)) = line.split_once(':') {
                all.paths.insert(module_name(path), path.to_owned());
                // depmod lists the closure with the first one to load at the end.
                all.needs
                    .insert(path.to_owned(), needs.split_whitespace().rev().map(str::to_owned).collect());
            }
        }
        all
    }

    /// Paths to load, in order, for these modules; those that aren't there are built in or absent.
    pub fn load_order(&self, names: &[&str]) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let mut order = Vec::new();
        for path in names.iter().filter_map(|name| self.paths.get(*name)) {
            for one in self.needs.get(path).into_iter().flatten().chain([path]) {
                if seen.insert(one.clone()) {
                    order.push(one.clone());
                }
            }
        }
        order
    }

    /// Has the kernel what a guest can't do without?
    ///
    /// # Errors
    /// What it lacks.
    pub fn check(&self, built_in: &str) -> Result<()> {
        let built_in: BTreeSet<String> = built_in.lines().map(module_name).collect();
        let missing: Vec<_> = REQUIRED
            .iter()
            .filter(|name| !self.paths.contains_key(**name) && !built_in.contains(**name))
            .copied()
            .collect();
        if !missing.is_empty() {
            return Err(Lacks(missing.join(", ")).into());
        }
        Ok(())
    }
}

/// A kernel that was made without a module that a guest needs.
#[derive(Debug)]
pub struct Lacks(String);

impl std::fmt::Display for Lacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "this kernel has no {}; take one with InfiniBand drivers", self.0)
    }
}

impl std::error::Error for Lacks {}

/// `kernel/drivers/block/virtio_blk.ko.xz` is `virtio_blk`; dashes count as underscores.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "kernel/a/top-one.ko.xz: kernel/a/mid.ko.xz kernel/a/low.ko.xz\n\
                        kernel/a/mid.ko.xz: kernel/a/low.ko.xz\nkernel/a/low.ko.xz:\nkernel/b/other.ko:\n";

    #[test]
    fn order_puts_needs_first_and_each_once() {
        let all = Dependencies::parse(TEXT);
        assert_eq!(
            all.load_order(&["mid", "top_one", "built_in", "other"]),
            ["kernel/a/low.ko.xz", "kernel/a/mid.ko.xz", "kernel/a/top-one.ko.xz", "kernel/b/other.ko"]
        );
    }

    #[test]
    fn a_kernel_without_the_drivers_is_refused() {
        let error = Dependencies::parse(TEXT).check("kernel/x/mlx5_core.ko\n").unwrap_err().to_string();
        assert!(error.contains("mlx5_ib") && !error.contains("mlx5_core"), "{error}");
    }
}
