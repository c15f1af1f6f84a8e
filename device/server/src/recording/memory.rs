//! Hosts' memory that is written down, and memory that answers from a recording.
//!
//! Both say that no range is mapped, so that payload is read when it is sent and never by reference: what is read, and when, does not
//! depend on who looks at packets. What the checker reads is kept apart: a recording can be played without it.

use std::sync::Arc;

use hca_model::{Answer, Asked, DeferredReads, DmaError, GuestMemory};

use super::Recorder;
use super::player::Player;
use super::record::{Bytes, DmaAnswer, Record};
use crate::memory::HostMemory;

const ON_ITS_WAY: u8 = 0;
const BUSY: u8 = 1;
const FAILED: u8 = 2;

fn told(asked: Asked) -> u8 {
    match asked {
        Asked::OnItsWay => ON_ITS_WAY,
        Asked::Busy => BUSY,
        Asked::Failed(_) => FAILED,
    }
}

fn answer_of(answer: Option<Answer>) -> DmaAnswer {
    match answer {
        None => DmaAnswer::None,
        Some(Answer::Read { ticket, data: Ok(data) }) => DmaAnswer::Read { ticket, data },
        Some(Answer::Read { ticket, data: Err(DmaError { iova, len }) }) => {
            DmaAnswer::ReadFailed { ticket, iova, len: len as u64 }
        }
        Some(Answer::WriteFailed(DmaError { iova, len })) => DmaAnswer::WriteFailed { iova, len: len as u64 },
    }
}

fn error(iova: u64, len: u64) -> DmaError {
    DmaError { iova, len: usize::try_from(len).unwrap_or(usize::MAX) }
}

fn answer_to(answer: DmaAnswer) -> Option<Answer> {
    match answer {
        DmaAnswer::None => None,
        DmaAnswer::Read { ticket, data } => Some(Answer::Read { ticket, data: Ok(data) }),
        DmaAnswer::ReadFailed { ticket, iova, len } => {
            Some(Answer::Read { ticket, data: Err(error(iova, len)) })
        }
        DmaAnswer::WriteFailed { iova, len } => Some(Answer::WriteFailed(error(iova, len))),
    }
}

/// The memory of an adapter's host, which is written down as it is accessed.
pub(crate) struct Recorded {
    memory: Arc<HostMemory>,
    recorder: Recorder,
    hca: u16,
    beside: Beside,
}

/// The same as the checker sees it.
struct Beside {
    memory: Arc<HostMemory>,
    recorder: Recorder,
    hca: u16,
}

impl Recorded {
    pub(crate) fn new(memory: Arc<HostMemory>, recorder: Recorder, hca: u16) -> Recorded {
        let beside = Beside { memory: Arc::clone(&memory), recorder: recorder.clone(), hca };
        Recorded { memory, recorder, hca, beside }
    }
}

impl GuestMemory for Recorded {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let (hca, len) = (self.hca, buf.len());
        let read = GuestMemory::read(&*self.memory, iova, buf);
        self.recorder.keep(&match read {
            Ok(()) => Record::DmaRead { hca, iova, data: buf.to_vec() },
            Err(_) => Record::DmaReadFailed { hca, iova, len: len as u64 },
        });
        read
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        let written = GuestMemory::write(&*self.memory, iova, data);
        let (data, done) = (Bytes::of(data), written.is_ok());
        self.recorder.keep(&Record::DmaWrite { hca: self.hca, iova, data, done });
        written
    }

    fn reaches(&self, iova: u64, len: usize) -> bool {
        let yes = self.memory.reaches(iova, len);
        self.recorder.keep(&Record::Reaches { hca: self.hca, iova, len: len as u64, yes });
        yes
    }

    fn aside(&self) -> Option<&dyn GuestMemory> {
        Some(&self.beside)
    }

    fn deferred(&self) -> Option<&dyn DeferredReads> {
        self.memory.defers().then_some(self as &dyn DeferredReads)
    }
}

impl DeferredReads for Recorded {
    fn answers_at_once(&self, iova: u64, len: usize) -> bool {
        let yes = self.memory.answers_at_once(iova, len);
        self.recorder.keep(&Record::AtOnce { hca: self.hca, iova, len: len as u64, yes });
        yes
    }

    fn ask(&self, ticket: u64, iova: u64, len: usize) -> Asked {
        let asked = self.memory.ask(ticket, iova, len);
        let record = Record::Ask { hca: self.hca, ticket, iova, len: len as u64, asked: told(asked) };
        self.recorder.keep(&record);
        asked
    }

    fn forget(&self) {
        self.memory.forget();
    }

    fn next_answer(&self) -> Option<Answer> {
        let answer = self.memory.next_answer();
        self.recorder.keep(&Record::Answer { hca: self.hca, answer: answer_of(answer.clone()) });
        answer
    }

    fn takes_writes(&self) -> bool {
        let yes = self.memory.takes_writes();
        self.recorder.keep(&Record::TakesWrites { hca: self.hca, yes });
        yes
    }
}

impl GuestMemory for Beside {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let read = self.memory.read_at_once(iova, buf);
        let data = read.is_ok().then(|| serde_bytes::ByteBuf::from(buf.to_vec()));
        self.recorder.keep(&Record::Look { hca: self.hca, iova, len: buf.len() as u64, data });
        read
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        // Who looks on does not write.
        Err(DmaError { iova, len: data.len() })
    }

    fn reaches(&self, iova: u64, len: usize) -> bool {
        let yes = self.memory.reaches(iova, len);
        self.recorder.keep(&Record::LookReaches { hca: self.hca, iova, len: len as u64, yes });
        yes
    }
}

/// Memory of a host that is in a recording.
pub(crate) struct Played {
    player: Player,
    hca: u16,
    beside: PlayedBeside,
}

/// The same as the checker sees it.
struct PlayedBeside {
    player: Player,
    hca: u16,
}

impl Played {
    pub(crate) fn new(player: Player, hca: u16) -> Played {
        let beside = PlayedBeside { player: player.clone(), hca };
        Played { player, hca, beside }
    }
}

impl GuestMemory for Played {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let (hca, len) = (self.hca, buf.len());
        let asked = || format!("DMA read of {len} bytes at {iova:#x}");
        let answer = self.player.answer(Some(hca), asked, |record| match record {
            Record::DmaRead { hca: h, iova: i, data } if (*h, *i, data.len()) == (hca, iova, len) => {
                Some(Some(std::mem::take(data)))
            }
            Record::DmaReadFailed { hca: h, iova: i, len: l } if (*h, *i, *l) == (hca, iova, len as u64) => {
                Some(None)
            }
            _ => None,
        });
        let data = answer.flatten().ok_or(DmaError { iova, len })?;
        buf.copy_from_slice(&data);
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        match self.player.write(self.hca, iova, data) {
            true => Ok(()),
            false => Err(DmaError { iova, len: data.len() }),
        }
    }

    fn reaches(&self, iova: u64, len: usize) -> bool {
        let asked = || format!("whether {len} bytes at {iova:#x} may be written");
        let answer = self.player.answer(Some(self.hca), asked, |record| match record {
            Record::Reaches { hca, iova: i, len: l, yes }
                if (*hca, *i, *l) == (self.hca, iova, len as u64) =>
            {
                Some(*yes)
            }
            _ => None,
        });
        answer.unwrap_or(false)
    }

    fn aside(&self) -> Option<&dyn GuestMemory> {
        Some(&self.beside)
    }

    fn deferred(&self) -> Option<&dyn DeferredReads> {
        self.player.defers(self.hca).then_some(self as &dyn DeferredReads)
    }
}

impl DeferredReads for Played {
    fn answers_at_once(&self, iova: u64, len: usize) -> bool {
        let asked = || format!("whether {len} bytes at {iova:#x} are answered at once");
        let answer = self.player.answer(Some(self.hca), asked, |record| match record {
            Record::AtOnce { hca, iova: i, len: l, yes }
                if (*hca, *i, *l) == (self.hca, iova, len as u64) =>
            {
                Some(*yes)
            }
            _ => None,
        });
        answer.unwrap_or(true)
    }

    fn ask(&self, ticket: u64, iova: u64, len: usize) -> Asked {
        let words = || format!("{len} bytes at {iova:#x} are asked for as request {ticket}");
        let answer = self.player.answer(Some(self.hca), words, |record| match record {
            Record::Ask { hca, ticket: t, iova: i, len: l, asked }
                if (*hca, *t, *i, *l) == (self.hca, ticket, iova, len as u64) =>
            {
                Some(*asked)
            }
            _ => None,
        });
        match answer {
            Some(ON_ITS_WAY) => Asked::OnItsWay,
            Some(BUSY) => Asked::Busy,
            _ => Asked::Failed(DmaError { iova, len }),
        }
    }

    fn forget(&self) {}

    fn next_answer(&self) -> Option<Answer> {
        let asked = || "an answer of memory is taken".to_owned();
        let answer = self.player.answer(Some(self.hca), asked, |record| match record {
            Record::Answer { hca, answer } if *hca == self.hca => {
                Some(std::mem::replace(answer, DmaAnswer::None))
            }
            _ => None,
        });
        answer.and_then(answer_to)
    }

    fn takes_writes(&self) -> bool {
        let asked = || "whether further writes may be posted".to_owned();
        let answer = self.player.answer(Some(self.hca), asked, |record| match record {
            Record::TakesWrites { hca, yes } if *hca == self.hca => Some(*yes),
            _ => None,
        });
        answer.unwrap_or(true)
    }
}

impl GuestMemory for PlayedBeside {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        let data = self.player.look(self.hca, iova, len).ok_or(DmaError { iova, len })?;
        buf.copy_from_slice(&data);
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        Err(DmaError { iova, len: data.len() })
    }

    fn reaches(&self, iova: u64, len: usize) -> bool {
        self.player.look_reaches(self.hca, iova, len)
    }
}
