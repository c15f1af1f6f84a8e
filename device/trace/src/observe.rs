//! The options for traces and captures of a world, and the observer that implements them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use hca_model::trace::Captured;
use hca_model::{HcaId, NodeId, PortRef, Ps, World};
use nix::libc;
use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::coverage::Coverage;
use crate::limit::{self, Counted, Quotas, size};
use crate::{pcapng, perfetto};

/// Records that wait for [`Observer::take`]: more than happen between two calls.
const RECORDS: usize = 1 << 20;

/// What to trace and capture.
#[derive(Debug, Clone, Default, Args)]
#[group(id = "observation")]
#[command(next_help_heading = "Traces and captures")]
pub struct Options {
    /// Write what the adapters do to FILE (JSON), for ui.perfetto.dev and `softhca explain`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print a hash of everything that happened at the end: the same scenario and seed give the same
    #[arg(long)]
    pub trace_hash: bool,
    /// Write the packets at the adapters' ports to FILE (pcapng), for Wireshark
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Only packets at this port, HOST/HCA:PORT or SWITCH:PORT; without the port's number, at all that the adapter
    /// or the switch has; may be given several times
    #[arg(long, value_name = "PORT", requires = "pcap")]
    pub pcap_port: Vec<String>,
    /// Collect what drivers use of the interface, for `softhca coverage` to ask for; with a file, written there at the end (JSON)
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub coverage: Option<Option<PathBuf>>,
    /// The trace ends when its file has so many bytes: 512M, 4G [default: 4G]
    #[arg(long, value_name = "SIZE", requires = "trace", value_parser = size)]
    pub trace_limit: Option<u64>,
    /// The capture ends when its file has so many bytes [default: 4G]
    #[arg(long, value_name = "SIZE", requires = "pcap", value_parser = size)]
    pub pcap_limit: Option<u64>,
}

impl Options {
    /// Whether anything is to be traced or captured.
    pub fn any(&self) -> bool {
        self.trace.is_some() || self.trace_hash || self.pcap.is_some() || self.coverage.is_some()
    }
}

/// Permissions of a file that is made: the owner's only.
const PRIVATE: u32 = 0o600;
/// How long records stay in a buffer, for programs that read the file while it grows.
const FLUSH: Duration = Duration::from_millis(200);

/// Traces and captures a world for its owner.
pub struct Observer {
    trace: Option<perfetto::Writer<Out>>,
    pcap: Option<pcapng::Writer<Out>>,
    coverage: Option<Coverage>,
    /// Where coverage is written at the end.
    coverage_file: Option<Out>,
    /// Names of the adapters.
    names: Vec<String>,
    /// Bytes that the files may have.
    limits: Limits,
    /// Bytes of the files that have ended, or that they had when they were flushed.
    written: Limits,
    quotas: Quotas,
    hash: bool,
    flushed: Instant,
    news: Vec<String>,
}

type Out = Counted<BufWriter<File>>;

/// Something of each file.
#[derive(Clone, Copy, Debug)]
struct Limits {
    trace: u64,
    pcap: u64,
}

/// Makes a file that only its owner can read: packets, traces and recordings show what guests do. It is not made, emptied or written
/// where somebody else has put a link or a file of their own.
///
/// # Errors
/// It can't be made, or is somebody else's.
pub fn create_private(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(PRIVATE).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path).map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP) => anyhow!("{shown}: is a symbolic link: links are not followed"),
        _ => anyhow!("{shown}: can't be written: {e}"),
    })?;
    let meta = file.metadata().with_context(|| format!("{shown}"))?;
    // A pipe to a program that shows packets is as good; what goes through it is in no file.
    if meta.is_file() {
        let own = geteuid().as_raw();
        ensure!(meta.uid() == own, "{shown}: is user {}'s and not user {own}'s", meta.uid());
        file.set_permissions(Permissions::from_mode(PRIVATE)).with_context(|| format!("{shown}"))?;
        file.set_len(0).with_context(|| format!("{shown}: can't be emptied"))?;
    }
    Ok(file)
}

fn create(path: &Path) -> anyhow::Result<Out> {
    Ok(Counted::new(BufWriter::new(create_private(path)?)))
}

/// The ports that packets are captured at, with their names: those that were asked for, or those of all adapters.
fn captured(wanted: &[String], world: &World) -> anyhow::Result<Vec<(PortRef, String)>> {
    let all: Vec<_> = world.ports().map(|port| (port, world.port_name(port))).collect();
    if wanted.is_empty() {
        let of_adapter = |(port, _): &(PortRef, String)| matches!(port.node, NodeId::Hca(_));
        return Ok(all.into_iter().filter(of_adapter).collect());
    }
    // The port; all of an adapter or a switch; all of a host; a port of a switch as topologies write it.
    let fits = |name: &str, wanted: &str| {
        let Some((node, port)) = name.rsplit_once(':') else { return false };
        let host = node.split_once('/').map(|(host, _)| host);
        [name, node, host.unwrap_or(node), &format!("{node}/{port}")].contains(&wanted)
    };
    for wanted in wanted {
        ensure!(
            all.iter().any(|(_, name)| fits(name, wanted)),
            "--pcap-port {wanted}: there is no such port, but {}",
            all.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(all.into_iter().filter(|(_, name)| wanted.iter().any(|wanted| fits(name, wanted))).collect())
}

impl Observer {
    /// Starts to trace and capture `world`.
    ///
    /// # Errors
    /// A file can't be made, or there is no port of a name that was given.
    pub fn new(options: &Options, world: &mut World) -> anyhow::Result<Self> {
        let names: Vec<String> = (0..world.hcas()).map(|i| world.name(HcaId(i)).to_string()).collect();
        let recorded = options.trace.is_some() || options.coverage.is_some();
        if options.trace.is_some() || options.trace_hash {
            world.start_trace(if recorded { RECORDS } else { 0 });
        }
        // A trace file has what coverage asks for, too.
        if recorded {
            world.start_coverage(RECORDS);
        }
        let coverage_file = options.coverage.iter().flatten().next().map(|path| create(path)).transpose()?;
        let trace = options.trace.as_ref().map(|path| {
            let out = create(path)?;
            perfetto::Writer::new(out, &names).with_context(|| format!("{}", path.display()))
        });
        let pcap = options.pcap.as_ref().map(|path| {
            let ports = captured(&options.pcap_port, world)?;
            ports.iter().for_each(|(port, _)| world.capture_packets(*port));
            let interface = |(port, name)| pcapng::Interface { port, kind: world.port_kind(port), name };
            let ports: Vec<_> = ports.into_iter().map(interface).collect();
            pcapng::Writer::new(create(path)?, &ports).with_context(|| format!("{}", path.display()))
        });
        Ok(Self {
            trace: trace.transpose()?,
            pcap: pcap.transpose()?,
            coverage: options.coverage.is_some().then(|| Coverage::new(&names)),
            coverage_file,
            names,
            limits: Limits {
                trace: options.trace_limit.unwrap_or(limit::FILE),
                pcap: options.pcap_limit.unwrap_or(limit::FILE),
            },
            written: Limits { trace: 0, pcap: 0 },
            quotas: Quotas::default(),
            hash: options.trace_hash,
            flushed: Instant::now(),
            news: Vec::new(),
        })
    }

    /// The packets of adapters may have no more than so many bytes in the capture: those of each, with its name, in the world's order.
    pub fn set_quotas(&mut self, adapters: impl IntoIterator<Item = (String, u64)>) {
        self.quotas = Quotas::new(adapters);
    }

    /// The start of the world's time moved; what was recorded before is taken.
    pub fn start_moved(&mut self, world: &World) {
        self.trace.iter_mut().for_each(|trace| trace.start_moved(world.start()));
        self.pcap.iter_mut().for_each(|pcap| pcap.start_moved(world.start()));
    }

    /// Takes what the owner is to be told of since the last call: what is not recorded any more.
    pub fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// What was recorded, for `softhca stat`.
    pub fn status(&self) -> Value {
        let file = |bytes: u64, limit: u64, goes_on: bool| json!({ "bytes": bytes, "limit": limit, "recording": goes_on });
        json!({
            "trace": file(self.written.trace, self.limits.trace, self.trace.is_some()),
            "pcap": file(self.written.pcap, self.limits.pcap, self.pcap.is_some()),
            "hcas": self.quotas.status(),
        })
    }

    /// What drivers used so far, if that is collected.
    pub fn coverage(&self) -> Option<&Coverage> {
        self.coverage.as_ref()
    }

    /// Something is to stand in the trace about an adapter, if there is one.
    ///
    /// # Errors
    /// Writing failed.
    pub fn note(&mut self, at: Ps, hca: HcaId, name: &str, args: &Value) -> anyhow::Result<()> {
        let noted = self.trace.as_mut().map_or(Ok(()), |trace| trace.note(at, hca, name, args));
        noted.and_then(|()| self.end_trace_at_limit()).context("trace")
    }

    /// Takes what the world has gathered since the last call. Cheap if nothing is traced or captured.
    ///
    /// # Errors
    /// Writing failed.
    pub fn take(&mut self, world: &mut World) -> anyhow::Result<()> {
        self.take_beside(world, &mut |_| ())
    }

    /// The same for somebody else, too, who is shown each packet.
    ///
    /// # Errors
    /// Writing failed.
    pub fn take_beside(
        &mut self,
        world: &mut World,
        packets: &mut dyn FnMut(&Captured),
    ) -> anyhow::Result<()> {
        self.take_trace(world).context("trace")?;
        self.take_packets(world, packets).context("pcap")?;
        let files = self.trace.is_some() || self.pcap.is_some();
        if files && self.flushed.elapsed() >= FLUSH {
            self.flushed = Instant::now();
            self.flush()?;
        }
        Ok(())
    }

    /// Records go into the file until it has its limit, and then nowhere.
    fn take_trace(&mut self, world: &mut World) -> std::io::Result<()> {
        for command in world.drain_commands() {
            let name = self.names.get(command.hca.0).map_or("", String::as_str);
            self.coverage.iter_mut().for_each(|coverage| coverage.command(name, &command));
            let Some(trace) = &mut self.trace else { continue };
            trace.command(&command)?;
            self.end_trace_at_limit()?;
        }
        for record in world.drain_trace() {
            if let Some(coverage) = &mut self.coverage {
                coverage.record(self.names.get(record.hca.0).map_or("", String::as_str), &record);
            }
            let Some(trace) = &mut self.trace else { continue };
            trace.record(&record)?;
            self.end_trace_at_limit()?;
        }
        Ok(())
    }

    /// Something was written to the trace: it ends if that was its last.
    fn end_trace_at_limit(&mut self) -> std::io::Result<()> {
        let Some(trace) = &self.trace else { return Ok(()) };
        self.written.trace = trace.out().written();
        if self.written.trace >= self.limits.trace {
            self.news.push(format!("the trace has {} bytes, its limit: it ends", self.written.trace));
            self.trace.take().map_or(Ok(()), perfetto::Writer::finish)?;
        }
        Ok(())
    }

    /// The same with packets, of which each adapter has a share.
    fn take_packets(&mut self, world: &mut World, packets: &mut dyn FnMut(&Captured)) -> std::io::Result<()> {
        for captured in world.drain_packets() {
            packets(&captured);
            let Some(pcap) = &mut self.pcap else { continue };
            if !self.quotas.admits(captured.port, captured.packet.len(), &mut self.news) {
                continue;
            }
            pcap.packet(captured)?;
            self.written.pcap = pcap.out().written();
            if self.written.pcap >= self.limits.pcap {
                self.news.push(format!("the capture has {} bytes, its limit: it ends", self.written.pcap));
                self.pcap.take().map_or(Ok(()), |mut pcap| pcap.flush())?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.trace.as_mut().map_or(Ok(()), perfetto::Writer::flush).context("trace")?;
        self.pcap.as_mut().map_or(Ok(()), pcapng::Writer::flush).context("pcap")
    }

    /// Takes the rest and ends the files. Returns what is to be printed: the hash if it was asked for, and how many
    /// records were lost because [`Observer::take`] was not called often enough.
    ///
    /// # Errors
    /// Writing failed.
    pub fn finish(mut self, world: &mut World) -> anyhow::Result<Vec<String>> {
        let written = self.trace.is_some();
        self.take(world)?;
        self.flush()?;
        if let Some(trace) = self.trace {
            trace.finish().context("trace")?;
        }
        if let (Some(coverage), Some(mut file)) = (&self.coverage, self.coverage_file) {
            writeln!(file, "{:#}", coverage.json()).and_then(|()| file.flush()).context("coverage")?;
        }
        let mut lines = self.news;
        let trace = world.trace();
        if self.hash
            && let Some(trace) = trace
        {
            lines.push(format!("trace hash: {:016x} of {} events", trace.hash(), trace.count()));
        }
        let lost = trace.map_or(0, |t| t.lost());
        if lost > 0 && written {
            lines.push(format!(
                "{lost} events are missing in the trace: they came faster than they were written"
            ));
        }
        Ok(lines)
    }
}
