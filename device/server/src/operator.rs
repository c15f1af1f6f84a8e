//! Those who ask a server how it is: clients of the control socket, and of the metrics.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use serde_json::{Value, json};

use crate::control::{self, ControlClient};
use crate::listener::Listener;
use crate::log::Source;
use crate::scrape::{self, Scrapes};

/// The doors for whoever runs the server, and who is there. Each answer takes what the server takes for it: one request is answered in a round,
/// of one client after the other.
#[derive(Debug, Default)]
pub(crate) struct Operator {
    control: Option<Listener>,
    clients: Vec<ControlClient>,
    scrapes: Option<Scrapes>,
    /// Of connections to the control socket.
    log: Source,
}

impl Operator {
    /// With that control socket, if there is to be one.
    pub(crate) fn new(control: Option<Listener>) -> Operator {
        Operator { control, ..Operator::default() }
    }

    /// Offers metrics at an address. Returns its port, if it has one.
    ///
    /// # Errors
    /// The address can't be had; the message names it.
    pub(crate) fn offer_metrics(&mut self, address: &scrape::Address) -> anyhow::Result<Option<u16>> {
        let scrapes = Scrapes::listen(address)?;
        let port = scrapes.port();
        self.scrapes = Some(scrapes);
        Ok(port)
    }

    /// Takes a connection of the control socket that somebody else has accepted.
    pub(crate) fn adopt(&mut self, stream: UnixStream) {
        self.clients.extend(ControlClient::new(stream));
    }

    /// Names the descriptors to wait for.
    pub(crate) fn watch<'a>(&'a self, mut add: impl FnMut(BorrowedFd<'a>, PollFlags)) {
        if let Some(control) = &self.control {
            add(control.as_fd(), PollFlags::POLLIN);
        }
        for client in &self.clients {
            add(client.as_fd(), if client.is_congested() { PollFlags::POLLOUT } else { PollFlags::POLLIN });
        }
        if let Some(scrapes) = &self.scrapes {
            scrapes.watch(add);
        }
    }

    /// Whether a request waits that was read already.
    pub(crate) fn has_request(&self) -> bool {
        self.clients.iter().any(ControlClient::has_request)
    }

    /// Whether there is something to do that no descriptor announces.
    pub(crate) fn has_work(&self) -> bool {
        self.has_request() || self.sleep() == Some(Duration::ZERO)
    }

    /// How long until somebody's time is over.
    pub(crate) fn sleep(&self) -> Option<Duration> {
        let clients = self.clients.iter().filter_map(ControlClient::due).min();
        let clients = clients.map(|due| due.saturating_duration_since(Instant::now()));
        clients.into_iter().chain(self.scrapes.as_ref().and_then(Scrapes::sleep)).min()
    }

    /// Takes what there is, and answers. `answer` gets what is asked for and the whole request.
    pub(crate) fn serve(&mut self, mut answer: impl FnMut(&str, &Value) -> Result<Value, String>) {
        if let Some(stream) = self.control.as_ref().and_then(Listener::accept) {
            control::admit(&mut self.clients, stream, &self.log);
        }
        let now = Instant::now();
        let in_time = |client: &ControlClient| client.due().is_none_or(|due| now < due);
        let mut answered = None;
        let mut others = Vec::with_capacity(self.clients.len());
        for mut client in self.clients.drain(..) {
            let mut turn = false;
            let lives = match answered {
                Some(_) => client.wait(),
                None => client.serve(|cmd, request| {
                    turn = true;
                    answer(cmd, request)
                }),
            };
            // What came in the last moment counts.
            let lives = lives && in_time(&client);
            match (turn, lives) {
                (true, lives) => answered = Some(lives.then_some(client)),
                (false, true) => others.push(client),
                (false, false) => {}
            }
        }
        // Whoever has had an answer is the last to have another.
        others.extend(answered.flatten());
        self.clients = others;
        if let Some(scrapes) = &mut self.scrapes {
            scrapes.serve(|scrapes| {
                let mut answer = |cmd| answer(cmd, &json!({ "cmd": cmd })).unwrap_or_default();
                scrape::page(&scrape::Source {
                    stat: answer("totals"),
                    metrics: answer("metrics"),
                    resources: answer("resources"),
                    links: answer("links"),
                    scrapes: scrapes.served(),
                })
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// However much each of them asks, one request is answered in a round; and all get as many answers.
    #[test]
    fn one_answer_in_a_round() {
        const CLIENTS: usize = 32;
        const EACH: usize = 5;
        let mut operator = Operator::default();
        let mut clients: Vec<UnixStream> = Vec::new();
        for number in 0..CLIENTS {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            operator.adopt(theirs);
            ours.write_all(format!("{{\"cmd\":\"{number}\"}}\n").repeat(EACH).as_bytes()).unwrap();
            clients.push(ours);
        }
        let mut answers = vec![0; CLIENTS];
        for round in 1..=CLIENTS * EACH {
            operator.serve(|cmd, _| {
                answers[cmd.parse::<usize>().unwrap()] += 1;
                Ok(json!({}))
            });
            assert_eq!(answers.iter().sum::<usize>(), round);
            let (least, most) = (answers.iter().min().unwrap(), answers.iter().max().unwrap());
            assert!(most - least <= 1, "{answers:?}");
            assert_eq!(operator.has_request(), round < CLIENTS * EACH, "the next round begins at once");
        }
        drop(operator);
        for client in &mut clients {
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            assert_eq!(text.lines().count(), EACH);
        }
    }
}
