//! What the world's owner may do while a train is in full flow: its packets have to be there again before anything happens to the
//! world, so a method that changes it comes to `World::rouse` by itself or by one that it calls.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, FnArg, ImplItem, Item, Type, Visibility};

use crate::modules::Sources;
use crate::root;

/// What lets the time go on, with flows as they are.
const TIME: [&str; 1] = ["run"];
/// What makes the packets of a flow.
const ROUSES: [&str; 1] = ["rouse"];

/// A method of the world.
struct Method {
    /// For others than the world's own files, and changes it.
    counts: bool,
    /// What it calls of itself.
    calls: BTreeSet<String>,
}

/// Methods called on `self`.
#[derive(Default)]
struct Calls(BTreeSet<String>);

impl<'ast> Visit<'ast> for Calls {
    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if matches!(&*call.receiver, Expr::Path(path) if path.path.is_ident("self")) {
            self.0.insert(call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }
}

fn methods(sources: &Sources) -> syn::Result<BTreeMap<String, Method>> {
    let mut all = BTreeMap::new();
    for (_, text) in sources.below("world") {
        for item in syn::parse_file(text)?.items {
            let Item::Impl(own) = item else { continue };
            let is_world = matches!(&*own.self_ty, Type::Path(path) if path.path.is_ident("World"));
            for item in own.items {
                let ImplItem::Fn(method) = item else { continue };
                if !is_world || own.trait_.is_some() {
                    continue;
                }
                let changes =
                    matches!(method.sig.inputs.first(), Some(FnArg::Receiver(me)) if me.mutability.is_some());
                let for_others = match &method.vis {
                    Visibility::Public(_) => true,
                    Visibility::Restricted(within) => within.path.is_ident("crate"),
                    Visibility::Inherited => false,
                };
                let mut calls = Calls::default();
                calls.visit_block(&method.block);
                let counts = changes && for_others;
                all.insert(method.sig.ident.to_string(), Method { counts, calls: calls.0 });
            }
        }
    }
    Ok(all)
}

/// Methods that change the world and come neither to [`ROUSES`] nor to [`TIME`].
fn silent(all: &BTreeMap<String, Method>) -> BTreeSet<&str> {
    let mut known: BTreeSet<&str> = ROUSES.into_iter().chain(TIME).collect();
    loop {
        let before = known.len();
        let come = |method: &Method| method.calls.iter().any(|call| known.contains(call.as_str()));
        let found: Vec<_> = all.iter().filter(|(_, method)| come(method)).map(|(name, _)| name).collect();
        known.extend(found.into_iter().map(String::as_str));
        if known.len() == before {
            break;
        }
    }
    let silent = all.iter().filter(|(name, method)| method.counts && !known.contains(name.as_str()));
    silent.map(|(name, _)| name.as_str()).collect()
}

/// Those that need not: they take what has happened already.
const TAKES: [&str; 6] =
    ["drain", "drain_commands", "drain_packets", "drain_trace", "drain_tunnels", "take_leaving"];

#[test]
fn whoever_changes_the_world_wakes_its_flow() {
    let sources = Sources::read(&root().join("device/model/src")).unwrap();
    let all = methods(&sources).unwrap();
    assert!(all.values().filter(|method| method.counts).count() > 50, "hardly a method was found");
    assert_eq!(silent(&all), TAKES.into());
}

#[test]
fn who_does_not_is_found() {
    let sources = Sources::of(&[
        ("lib.rs", "impl World { pub fn other_file(&mut self) { self.now = 1; } }"),
        (
            "world/mod.rs",
            "impl World {
                pub fn looks(&self) -> u8 { self.now }
                pub fn forgets(&mut self) { self.hcas.rouse(); self.inner(); }
                pub(super) fn inner(&mut self) { self.now = 1; }
                pub(crate) fn far(&mut self) { if true { self.near(); } }
                fn near(&mut self) { self.rouse(); }
                pub fn advance(&mut self) { self.run(); }
            }
            impl Other { pub fn changes(&mut self) { self.now = 1; } }",
        ),
    ]);
    assert_eq!(silent(&methods(&sources).unwrap()), ["forgets"].into());
}
