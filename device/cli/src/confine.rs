//! What `softhca serve` and simulations give up before they begin: inherited descriptors, root's rights, and everything that the sandbox
//! takes.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use hca_server::sandbox::privileges::Account;
use hca_server::sandbox::{Connects, Helper, Role, Sandbox, descriptors};

/// How far the server is confined.
#[derive(Debug, Args)]
#[command(next_help_heading = "Confinement")]
pub(crate) struct Confinement {
    /// Keep all rights of who starts it: no filter of system calls, no landlock, no limits. For debugging only
    #[arg(long)]
    no_sandbox: bool,
    /// User to become, by name or number, when started by root: before anything is opened or made but the run directory
    #[arg(long, value_name = "USER")]
    uid: Option<String>,
    /// Its group, instead of that of the user database
    #[arg(long, value_name = "GROUP", requires = "uid")]
    gid: Option<String>,
}

impl Confinement {
    /// Whether there is no sandbox.
    pub(crate) fn is_off(&self) -> bool {
        self.no_sandbox
    }

    /// To be called before anything is opened. `run_dir` will be the user's. Returns the process that looks at clients' mappings,
    /// if there is one.
    ///
    /// # Errors
    /// The user can't be become.
    pub(crate) fn begin(&self, run_dir: Option<&Path>) -> anyhow::Result<Option<Helper>> {
        self.begin_alone(run_dir)?;
        if self.no_sandbox {
            return Ok(None);
        }
        let helper = Helper::start().inspect_err(|why| {
            tracing::warn!("no process for clients' mappings, share=on will not be checked: {why:#}");
        });
        Ok(helper.ok())
    }

    /// The same where nobody gives mappings.
    ///
    /// # Errors
    /// The user can't be become.
    pub(crate) fn begin_alone(&self, run_dir: Option<&Path>) -> anyhow::Result<()> {
        descriptors::close_inherited(&[]);
        if let Some(user) = &self.uid {
            let account = Account::find(user, self.gid.as_deref())?;
            if let Some(dir) = run_dir {
                account.make_folder(dir)?;
            }
            account.become_it()?;
        }
        Ok(())
    }

    /// To be called when everything is open: from here on nothing can be. `sockets`: the folders that have this server's;
    /// `outputs`: it writes traces or captures; `connects`: connections that it begins.
    ///
    /// # Errors
    /// The kernel can't do it.
    pub(crate) fn enter(
        &self,
        role: Role,
        sockets: &[&Path],
        outputs: bool,
        connects: Connects,
    ) -> anyhow::Result<()> {
        let remove = sockets.iter().map(|path| folder(path)).collect();
        self.enter_as(Sandbox { role, remove, read: Vec::new(), outputs, descriptors: None, connects })
    }

    /// The same for a worker, which may have so many `descriptors`.
    ///
    /// # Errors
    /// As [`Confinement::enter`].
    pub(crate) fn enter_worker(&self, descriptors: u64) -> anyhow::Result<()> {
        let (remove, read, connects) = (Vec::new(), Vec::new(), Connects::default());
        let descriptors = Some(descriptors);
        self.enter_as(Sandbox { role: Role::Worker, remove, read, outputs: false, descriptors, connects })
    }

    fn enter_as(&self, sandbox: Sandbox) -> anyhow::Result<()> {
        if self.no_sandbox {
            tracing::warn!(
                "NO SANDBOX: who takes this process over, a guest or a peer, has all rights of the user who started it (--no-sandbox)"
            );
            return Ok(());
        }
        let achieved = sandbox.enter().context("the sandbox can't be entered; --no-sandbox does without")?;
        tracing::info!("sandbox: {achieved}");
        Ok(())
    }
}

/// A path that can be opened: that of a file in the present folder has no other.
fn folder(path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_path_buf() }
}
