use super::*;

/// Those that leave the rest 3 are nobody's.
impl Owned for u64 {
    fn owner(&self) -> Option<usize> {
        Some((self % 4) as usize).filter(|owner| *owner < 3)
    }
}

impl Owned for (usize, u64) {}

impl Owned for char {}
use crate::ground::random::SplitMix64;

const SOURCE: Source = Source::new(4, 0, 0);

#[test]
fn the_order_of_sources_does_not_depend_on_other_sources() {
    let sources = [(3, 1, 2), (3, 1, 1), (0, 9, 9), (4, 0, 0), (3, 0, 7)];
    let order = |with: &[usize]| {
        let mut h = EventHeap::default();
        for round in 0..2 {
            for i in with {
                let (class, node, port) = sources[*i];
                h.push(Ps(7), Source::new(class, node, port), (*i, round));
            }
        }
        std::iter::from_fn(move || h.pop_until(Ps(7)).map(|e| e.1)).collect::<Vec<_>>()
    };
    let all = order(&[0, 1, 2, 3, 4]);
    assert_eq!(all.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [2, 2, 4, 4, 1, 1, 0, 0, 3, 3]);
    assert_eq!(order(&[4, 3, 2, 1, 0]), all);
    let some: Vec<_> = all.iter().filter(|(i, _)| [0, 3, 4].contains(i)).copied().collect();
    assert_eq!(order(&[3, 0, 4]), some);
    assert!(Source::new(1, usize::MAX, 255) < Source::new(2, 0, 0));
}

#[test]
fn same_time_keeps_order() {
    let mut h = EventHeap::default();
    for (at, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
        h.push(Ps(at), SOURCE, name);
    }
    let order: String = std::iter::from_fn(|| h.pop_until(Ps(5)).map(|e| e.1)).collect();
    assert_eq!(order, "abcd");
    h.push(Ps(9), SOURCE, 'e');
    assert_eq!(h.pop_until(Ps(8)), None);
    assert_eq!(h.next_at(), Some(Ps(9)));
}

#[test]
fn many_events_come_in_order_and_leave_no_memory() {
    // Many in a bucket, a few in each, and most of them far ahead.
    for spread in [48, 40, 30] {
        many_events(spread);
    }
}

/// Times have `64 - spread` bits.
fn many_events(spread: u32) {
    const MANY: u64 = 20_000;
    let mut h = EventHeap::default();
    let at = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> spread;
    for i in 0..MANY {
        h.push(Ps(at(i)), SOURCE, i);
        if i % 3 == 0 {
            assert!(h.pop_until(Ps::MAX).is_some());
        }
    }
    assert_eq!(h.len() as u64, MANY - MANY.div_ceil(3));
    let rest: Vec<(Ps, u64)> = std::iter::from_fn(|| h.pop_until(Ps::MAX)).collect();
    assert!(rest.is_sorted() && rest.iter().all(|(t, i)| t.0 == at(*i)));
    assert!(h.is_empty() && h.slots.capacity() <= EventHeap::<u64>::KEPT);
}

/// Some are taken out, a few places at a time, while time goes on and others come: the rest comes as if nothing had been.
#[test]
fn what_is_kept_stays_in_order() {
    let mut random = SplitMix64(7);
    let mut heaps = [EventHeap::default(), EventHeap::default()];
    let (mut now, mut place, mut swept) = (0, 0, 0);
    // What is soon isn't looked at.
    let dropped = |i: u64| i.is_multiple_of(5);
    for i in 0..20_000_u64 {
        // Some at the same time, some soon, most late.
        let at = Ps(now + (random.below(1 << 20) << random.below(16)));
        heaps.iter_mut().for_each(|heap| heap.push(at, Source::new((i % 3) as u8, 0, 0), i));
        if i % 16 == 0 {
            now += random.below(1 << 22);
            let [all, some] = &mut heaps;
            let kept = |heap: &mut EventHeap<u64>| -> Vec<_> {
                let all = std::iter::from_fn(|| heap.pop_until(Ps(now)));
                all.filter(|(_, i)| !dropped(*i)).collect()
            };
            assert_eq!(kept(all), kept(some));
            let before = some.len();
            place = some.sweep(place, 100, |_, i| !dropped(*i)).unwrap_or_default();
            swept += before - some.len();
        }
    }
    assert!(swept > 1000, "{swept}");
    let [mut all, mut some] = heaps;
    while let Some(next) = some.sweep(place, 1000, |_, i| !dropped(*i)) {
        place = next;
    }
    for heap in [&all, &some] {
        assert_eq!(heap.iter().count(), heap.len());
        let of = |owner: u64| heap.iter().filter(|(_, i)| **i % 4 == owner).count();
        assert!((0..3).all(|owner| heap.len_of(owner as usize) == of(owner)), "of no number 3");
        assert_eq!(heap.len_of(3), 0);
    }
    // The sequence starts anew: entries are in their places.
    some.sequence = SEQUENCES;
    all.sequence = SEQUENCES;
    let rest = |mut heap: EventHeap<u64>| {
        heap.push(Ps(now), Source::default(), 1);
        std::iter::from_fn(move || heap.pop_until(Ps::MAX)).filter(|(_, i)| !dropped(*i)).collect::<Vec<_>>()
    };
    assert_eq!(rest(all), rest(some));
}

/// All of it, and then nothing is left.
#[test]
fn everything_may_be_taken_out() {
    let mut heap = EventHeap::default();
    (0..10_000u64).for_each(|i| heap.push(Ps((1 << 40) + i % 77), Source::default(), i));
    assert_eq!(heap.sweep(0, 5000, |_, i| *i == 9999), Some(5000));
    assert_eq!((heap.len(), heap.next_at()), (5000, heap.iter().map(|(at, _)| at).min()));
    assert_eq!(heap.sweep(5000, 5000, |_, i| *i == 9999), None);
    assert_eq!(heap.pop_until(Ps::MAX), Some((Ps((1 << 40) + 9999 % 77), 9999)));
    assert_eq!((heap.len(), heap.next_at(), heap.pop_until(Ps::MAX)), (0, None, None));
}

#[test]
fn it_is_in_order_whatever_comes_between() {
    // In one bucket, in all of them, and beyond them.
    for scale in [1, 1 << 9, 1 << 15, 1 << 19] {
        in_order(scale);
    }
}

fn in_order(scale: u64) {
    let mut random = SplitMix64(1);
    let mut below = |n| random.below(n);
    // The sequence starts anew on the way.
    let mut h = EventHeap { sequence: SEQUENCES - 5_000, ..EventHeap::default() };
    let mut plain = std::collections::BTreeMap::new();
    let mut now = 0;
    for i in 0..20_000u64 {
        for _ in 0..below(4) {
            let at = now + below(50) * scale;
            let node = below(3) as usize;
            h.push(Ps(at), Source::new(4, node, 0), (node, i));
            let same: &mut Vec<_> = plain.entry(at).or_default();
            let place = same.partition_point(|(n, _)| *n <= node);
            same.insert(place, (node, i));
        }
        for _ in 0..below(4) {
            assert_eq!(h.next_at(), plain.first_key_value().map(|(at, _)| Ps(*at)));
            assert_eq!(h.len(), plain.values().map(Vec::len).sum::<usize>());
            let until = now + below(30) * scale;
            let expected = plain.first_entry().filter(|e| *e.key() <= until).map(|mut e| {
                let (at, first) = (Ps(*e.key()), e.get_mut().remove(0));
                if e.get().is_empty() {
                    e.remove();
                }
                (at, first)
            });
            assert_eq!(h.pop_until(Ps(until)), expected);
            now = expected.map_or(now, |(at, _)| at.0);
        }
    }
    assert!(h.sequence < SEQUENCES / 2, "it did start anew");
}

#[test]
fn ticks_of_a_clock() {
    assert_eq!(Ps::from_ms(1000).ticks(156_250), 156_250_000);
}
