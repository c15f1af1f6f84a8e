//! Lets go of what a host handed over, on a thread of its own: that may take long, and nobody waits for it.
//!
//! Closing a descriptor can block for as long as whoever made it likes (a socket that lingers, a file of a file system that
//! a program serves). Unmapping memory whose file nobody else has any more frees its pages, some 0.1 s for each GiB. A
//! gigabyte of an adapter's objects, all gone by one command or reset, is millions of blocks to free: half a second. Each
//! adapter has closers of its own, one for descriptors and one for objects, so that none waits for what another's host gave. The
//! thread is there only while there is something to do.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sync::lock;
use crate::trim;

/// Something to be dropped.
type Burden = Box<dyn Any + Send>;

/// While many objects are dropped, what is freed goes back to the system this often: it is little each time, and so is what
/// anybody else waits who wants memory.
const GIVE_BACK: Duration = Duration::from_millis(10);

/// So many adapters' worth of objects wait at most: a host that resets its adapter over and over has them dropped where it
/// waits for it. They are few then, because making many takes longer than dropping them.
const MOST_WAITING: usize = 16;

/// Very many blocks of memory.
struct Objects(Option<Burden>);

impl Drop for Objects {
    fn drop(&mut self) {
        let objects = self.0.take();
        let (done, many) = (AtomicBool::new(false), AtomicBool::new(false));
        let give_back = || {
            loop {
                std::thread::park_timeout(GIVE_BACK);
                if done.load(Ordering::Acquire) {
                    return;
                }
                many.store(true, Ordering::Relaxed);
                trim::give_back();
            }
        };
        std::thread::scope(|scope| {
            let beside = std::thread::Builder::new().name("closer-trim".into()).stack_size(STACK);
            let beside = beside.spawn_scoped(scope, give_back);
            drop(objects);
            done.store(true, Ordering::Release);
            if let Ok(beside) = beside {
                beside.thread().unpark();
            }
        });
        if many.into_inner() {
            trim::give_back();
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Burden>,
    /// Those that are neither waiting nor gone: 1 while the thread drops one.
    dropping: usize,
    /// A thread empties the queue.
    running: bool,
}

/// Drops values elsewhere, one after the other. Clones share the queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closer {
    queue: Arc<Mutex<Queue>>,
}

impl Closer {
    /// Drops `what` on another thread. If the system gives no thread it waits for the next call.
    pub(crate) fn give(&self, what: impl Any + Send) {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(Box::new(what));
        if queue.running {
            return;
        }
        let shared = Arc::clone(&self.queue);
        let thread = std::thread::Builder::new().name("closer".into()).stack_size(STACK);
        queue.running = thread.spawn(move || empty(&shared)).is_ok();
    }

    /// Drops all objects of an adapter, on another thread; at once, if [`MOST_WAITING`] wait already.
    pub(crate) fn give_objects(&self, objects: Burden) {
        if self.pending() < MOST_WAITING {
            self.give(Objects(Some(objects)));
        }
    }

    /// How many values are not gone yet.
    pub(crate) fn pending(&self) -> usize {
        let queue = lock(&self.queue);
        queue.waiting.len() + queue.dropping
    }
}

/// Dropping a descriptor or a mapping needs no more than a frame or two.
const STACK: usize = 128 << 10;

fn empty(queue: &Mutex<Queue>) {
    loop {
        let next = {
            let mut queue = lock(queue);
            let next = queue.waiting.pop_front();
            queue.dropping = usize::from(next.is_some());
            queue.running = next.is_some();
            next
        };
        let Some(next) = next else { return };
        drop(next);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Blocks when it is dropped, until it is told to go on.
    struct Stuck(Receiver<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    /// Whoever gives faster than the thread can drop does it himself, so that no heap of them grows.
    #[test]
    fn objects_that_wait_are_bounded() {
        let (go_on, wait) = channel();
        let closer = Closer::default();
        closer.give(Stuck(wait));
        let told = Arc::new(());
        for _ in 0..3 * MOST_WAITING {
            closer.give_objects(Box::new(Arc::clone(&told)));
        }
        assert_eq!((closer.pending(), Arc::strong_count(&told)), (MOST_WAITING, MOST_WAITING));
        go_on.send(()).unwrap();
        while closer.pending() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&told), 1);
    }

    #[test]
    fn what_blocks_holds_nobody_but_its_own_closer() {
        let (go_on, wait) = channel();
        let (one, other) = (Closer::default(), Closer::default());
        one.give(Stuck(wait));
        one.give(1);
        other.give(2);
        while other.pending() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(one.pending(), 2);
        go_on.send(()).unwrap();
        while one.pending() > 0 {
            std::thread::yield_now();
        }
    }
}
