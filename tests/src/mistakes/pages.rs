//! Pages of the firmware.

use hca_driver::{Bus, Dma};
use hca_spec::cmd::{FunctionIn, PAGES_GIVE};
use hca_spec::command::{Opcode, OutHeader};

use super::Mistake;
use super::bench::{Bench, Command};

pub(super) const ALL: &[Mistake] = &[
    Mistake::command("MANAGE_PAGES with a page that is not aligned", "pas", Opcode::ManagePages, |c| {
        first_page(c, |page| page + 0x200);
    }),
    Mistake::command("MANAGE_PAGES with a page that is not mapped", "pas", Opcode::ManagePages, |c| {
        first_page(c, |_| 0x10_0000);
    }),
    Mistake::command("MANAGE_PAGES with one page twice", "pas", Opcode::ManagePages, |c| {
        first_page(c, |page| page + 0x1000);
    }),
    Mistake::command(
        "MANAGE_PAGES with a list shorter than it says",
        "input_num_entries",
        Opcode::ManagePages,
        |c| {
            c.set(0, FunctionIn::INPUT_NUM_ENTRIES, 17);
        },
    ),
    Mistake::command("MANAGE_PAGES of another function", "function_id", Opcode::ManagePages, |c| {
        c.set(0, FunctionIn::FUNCTION_ID, 3);
    }),
    Mistake::command("QUERY_PAGES with a reserved modifier", "op_mod", Opcode::QueryPages, |c| {
        c.set(0, hca_spec::command::InHeader::OP_MOD, 9);
    }),
    Mistake::driver("page given that the firmware has already", "pas", |b| {
        let mut hca = b.open(0);
        let page = hca.bus_mut().dma_alloc(4096, 4096).expect("memory");
        for _ in 0..b.pick(2, 1) {
            give(b, &mut hca, &page);
        }
        b.keep((hca, page));
    }),
    Mistake::driver("page written that the firmware was given", "page of the firmware", |b| {
        let mut hca = b.open(0);
        let mut page = hca.bus_mut().dma_alloc(4096, 4096).expect("memory");
        page.write(0, b"mine");
        give(b, &mut hca, &page);
        b.simulation.run(hca_model::Ps::from_us(100));
        if b.is_wrong() {
            page.write(0x123, b"still mine");
        }
        b.keep((hca, page));
    }),
    Mistake::driver("page written between bring-up and teardown", "page of the firmware", |b| {
        let mut hca = b.open(0);
        let mut page = hca.bus_mut().dma_alloc(4096, 4096).expect("memory");
        give(b, &mut hca, &page);
        if b.is_wrong() {
            page.write(0xff8, b"last one");
        }
        // Taken back at once: it is compared then, too.
        let closed = hca.close().map(drop);
        b.note(closed);
        b.keep(page);
    }),
];

fn first_page(c: &mut Command, change: fn(u64) -> u64) {
    let page = hca_spec::be64(&c.input, FunctionIn::SIZE);
    c.input[FunctionIn::SIZE..FunctionIn::SIZE + 8].copy_from_slice(&change(page).to_be_bytes());
}

/// Gives one more page.
fn give(b: &mut Bench, hca: &mut hca_driver::Hca<super::bench::Hand>, page: &crate::in_process::ModelMemory) {
    let mut input = FunctionIn::new();
    input.set(FunctionIn::INPUT_NUM_ENTRIES, 1);
    let mut input = input.bytes().to_vec();
    input.extend_from_slice(&page.bus_address().to_be_bytes());
    let given = hca.execute(Opcode::ManagePages, PAGES_GIVE, input, OutHeader::SIZE);
    b.note(given);
}
