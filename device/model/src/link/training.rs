//! One end of a link: the light that its port gives, what it knows of the far end, and training.
//!
//! An end that is lit tells the far end what it can train to, and how much room there is behind it. Training begins
//! where both are known; it takes the same time at both ends, so that a packet which an end sends as soon as its link
//! is up finds the far end up, too. An end that loses its link tells that in the same way, by a new light or none. Each
//! light begins a new session: what left in an earlier one is void where it arrives.
//!
//! Source: IBTA vol 1 7.2 (states of a port), 7.9.4 (credits are told when the link trained), vol 2 5.7 (training).

use hca_firmware::{LinkOffer, PortLink};

use crate::ground::time::Ps;

/// What an end of a link tells the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Light {
    /// Counts the lights that the end gave.
    pub session: u16,
    /// What it can train to; `None`: it is dark, since its port is disabled or its cable is out.
    pub offer: Option<LinkOffer>,
    /// Bytes of input buffer behind it, for each data lane; `None`: it gives no credits.
    pub buffer: Option<u32>,
    /// What its MAC and PHY take.
    pub latency: Ps,
}

/// The session of a link as one of its ends knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Session {
    /// That of the end itself.
    pub near: u16,
    /// That of the other end, as far as it is known.
    pub far: u16,
}

impl Session {
    /// The same, as the other end sees it.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { near: self.far, far: self.near }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Down,
    Training,
    Up,
}

/// What an end does after something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub(crate) struct TrainingStep {
    /// The link was lost: it was up. Of a training that is lost nobody but the ends of the link has heard.
    pub(crate) lost: bool,
    /// Tells the other end.
    pub(crate) tell: Option<Light>,
    /// Trains; when that is done [`Training::trained`] gets this number.
    pub(crate) train: Option<u32>,
}

/// One end of a link.
#[derive(Debug, Clone, Default)]
pub(crate) struct Training {
    state: State,
    near: Light,
    far: Light,
    /// Counts trainings: timers of earlier ones are void.
    generation: u32,
}

impl Training {
    /// An end that gives so much room to the other.
    pub(crate) fn new(buffer: Option<u32>, latency: Ps) -> Self {
        Self { near: Light { buffer, latency, ..Light::default() }, ..Self::default() }
    }

    /// The end gives so much room from the next training on.
    pub(crate) fn give(&mut self, buffer: Option<u32>) {
        self.near.buffer = buffer;
    }

    /// There is nobody at the other end to ask: it can all this.
    pub(crate) fn assume(&mut self, far: LinkOffer) {
        self.far.offer = Some(far);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// What this end told last.
    pub(crate) fn near(&self) -> &Light {
        &self.near
    }

    /// What the other end told last.
    pub(crate) fn far(&self) -> &Light {
        &self.far
    }

    pub(crate) fn session(&self) -> Session {
        Session { near: self.near.session, far: self.far.session }
    }

    /// Whether what the other end sent in `session`, as it knew it, belongs to the link as it is up now.
    pub(crate) fn accepts(&self, session: Session) -> bool {
        self.is_up() && session.reversed() == self.session()
    }

    /// The port offers this now, or is dark; `lost`: its link went down meanwhile. While the link is up an offer that
    /// changes waits until the link goes down.
    pub(crate) fn update(&mut self, offer: Option<LinkOffer>, lost: bool) -> TrainingStep {
        let up = self.is_up();
        let changed =
            if up { lost || offer.is_none() != self.near.offer.is_none() } else { offer != self.near.offer };
        let mut step = TrainingStep::default();
        if changed {
            self.near = Light { session: self.near.session.wrapping_add(1), offer, ..self.near };
            step.tell = Some(self.near);
            step.lost = self.fall();
        }
        step.train = self.train();
        step
    }

    /// The other end told this.
    pub(crate) fn light(&mut self, far: Light) -> TrainingStep {
        self.far = far;
        TrainingStep { lost: self.fall(), tell: None, train: self.train() }
    }

    /// The training of that number is over. Returns what the link trained to, `Some(None)` if its ends have nothing in
    /// common; `None`: something came between.
    pub(crate) fn trained(&mut self, generation: u32) -> Option<Option<PortLink>> {
        if self.state != State::Training || generation != self.generation {
            return None;
        }
        let agreed = self.near.offer.zip(self.far.offer).and_then(|(near, far)| near.common(far).best());
        self.state = if agreed.is_some() { State::Up } else { State::Down };
        Some(agreed)
    }

    /// Nothing is up, or trains. Returns whether it was up.
    fn fall(&mut self) -> bool {
        std::mem::take(&mut self.state) == State::Up
    }

    fn train(&mut self) -> Option<u32> {
        if self.state != State::Down || self.near.offer.is_none() || self.far.offer.is_none() {
            return None;
        }
        self.state = State::Training;
        self.generation = self.generation.wrapping_add(1);
        Some(self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_firmware::LinkSpeed;

    fn offer(width: u8, speed: LinkSpeed) -> LinkOffer {
        LinkOffer::up_to(PortLink { width, speed })
    }

    #[test]
    fn both_ends_come_to_the_same_result() {
        let mut ends = [Training::new(Some(1), Ps(1)), Training::new(Some(2), Ps(2))];
        let offers = [offer(4, LinkSpeed::Fdr), offer(1, LinkSpeed::Edr)];
        let lights = [0, 1].map(|i| ends[i].update(Some(offers[i]), false).tell.unwrap());
        assert!(ends.iter().all(|e| !e.is_up()));
        let trained = [0, 1].map(|i| {
            let step = ends[i].light(lights[1 - i]);
            assert_eq!((step.lost, step.tell), (false, None));
            ends[i].trained(step.train.unwrap())
        });
        let agreed = Some(Some(PortLink { width: 1, speed: LinkSpeed::Fdr }));
        assert_eq!(trained, [agreed; 2]);
        assert_eq!((ends[0].far().buffer, ends[1].far().latency), (Some(2), Ps(1)));
        let [a, b] = &ends;
        assert!(a.accepts(b.session()) && b.accepts(a.session()));
    }

    #[test]
    fn what_left_before_is_void() {
        let full = Some(offer(4, LinkSpeed::Edr));
        let far = Light { session: 7, offer: full, ..Light::default() };
        let mut end = Training::default();
        assert_eq!(end.light(far).train, None, "dark itself");
        let step = end.update(full, false);
        let generation = step.train.unwrap();
        assert_eq!(end.trained(generation.wrapping_add(1)), None);
        assert!(end.trained(generation).is_some_and(|agreed| agreed.is_some()));
        let sent = end.session().reversed();
        assert!(end.accepts(sent));
        assert_eq!(end.update(full, false), TrainingStep::default());
        assert_eq!(
            end.update(Some(offer(1, LinkSpeed::Edr)), false),
            TrainingStep::default(),
            "not while it is up"
        );
        // The port lost its link: the far end hears of it, and both train again.
        let step = end.update(full, true);
        assert!(step.lost && step.tell.is_some_and(|light| light.session == 2) && step.train.is_some());
        assert_eq!(end.trained(generation), None, "a timer of before");
        assert!(end.trained(step.train.unwrap()).is_some() && !end.accepts(sent));
        // So does a light of the far end, whatever it tells.
        let step = end.light(Light { session: 8, ..far });
        assert!(step.lost && step.tell.is_none() && step.train.is_some());
        let step = end.light(Light { session: 9, offer: None, ..far });
        assert!(!step.lost && step.train.is_none(), "it was training");
        assert_eq!(end.update(None, false).train, None);
    }

    #[test]
    fn nothing_in_common() {
        let mut end = Training::default();
        let _ = end.light(Light { offer: Some(LinkOffer { widths: 1, speeds: 1 }), ..Light::default() });
        let generation = end.update(Some(LinkOffer { widths: 2, speeds: 1 }), false).train.unwrap();
        assert_eq!(end.trained(generation), Some(None));
        assert!(
            end.update(Some(LinkOffer { widths: 3, speeds: 1 }), false).train.is_some(),
            "it tries again"
        );
    }
}
