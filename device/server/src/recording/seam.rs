//! Where a part of the server meets a recording: not at all, mostly.

use super::Recorder;
use super::player::Player;
use super::record::Record;

/// Whether what happens is written down, or is read from a recording.
#[derive(Clone, Debug, Default)]
pub(crate) enum Seam {
    /// Neither.
    #[default]
    Off,
    /// It is written down.
    Records(Recorder),
    /// It is read.
    Plays(Player),
}

impl Seam {
    /// Keeps a record, if records are kept.
    #[inline]
    pub(crate) fn keep(&self, record: impl FnOnce() -> Record) {
        if let Seam::Records(recorder) = self {
            recorder.keep(&record());
        }
    }

    /// Keeps what came of something, or compares it with what is recorded.
    #[inline]
    pub(crate) fn came(&self, record: impl FnOnce() -> Record) {
        match self {
            Seam::Off => {}
            Seam::Records(recorder) => recorder.keep(&record()),
            Seam::Plays(player) => player.came(&record()),
        }
    }

    /// Keeps a step if something comes of it before [`Seam::has_come`] says the opposite.
    #[inline]
    pub(crate) fn may_come(&self, step: impl FnOnce() -> Record) {
        if let Seam::Records(recorder) = self {
            recorder.may_come(step());
        }
    }

    /// A step that may have come is over. `yes`: it is kept in any case.
    #[inline]
    pub(crate) fn has_come(&self, yes: bool) {
        if let Seam::Records(recorder) = self {
            recorder.has_come(yes);
        }
    }

    /// Who records, if somebody does.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        match self {
            Seam::Records(recorder) => Some(recorder),
            _ => None,
        }
    }

    /// Who plays, if somebody does.
    #[inline]
    pub(crate) fn player(&self) -> Option<&Player> {
        match self {
            Seam::Plays(player) => Some(player),
            _ => None,
        }
    }
}
