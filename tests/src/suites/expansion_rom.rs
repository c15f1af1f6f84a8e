//! An expansion ROM: the host's firmware starts its image, and the operating system reads it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hca_vm::guest::Copy;
use hca_vm::run::Run;

use super::Case;
use super::covered::covered;
use super::guest::complaints;
use crate::guests::turn;

/// File of the image.
const IMAGE: &str = "softhca-suite.rom";
/// What it says on the serial console.
const WORDS: &[u8] = b"softhca: this image was started\r\n\0";
/// Bytes of the image.
const SIZE: usize = 512;

/// In a guest whose adapter has a ROM.
pub(super) fn cases(kernel: &str) -> Vec<Case> {
    let started = Instant::now();
    let complaint = run(kernel).unwrap_or_else(|error| format!("{error:#}"));
    vec![Case { seconds: started.elapsed().as_secs_f64(), ..Case::check("expansion ROM", complaint) }]
}

/// What there is to say against it.
fn run(kernel: &str) -> Result<String> {
    let folder = std::env::temp_dir().join("softhca-suite-rom");
    let (image, topology) = files(&folder).with_context(|| folder.display().to_string())?;
    let script = format!(
        "cd \"$(dirname \"$(grep -l 0x15b3 /sys/bus/pci/devices/*/vendor)\")\" && echo 1 >rom &&
        head -c {SIZE} rom | cmp - /root/{IMAGE} && echo 0 >rom && echo the same"
    );
    let report = {
        let _turn = turn(1);
        covered(Run::new(topology.display().to_string()))
            .kernel(kernel)
            .timeout(Duration::from_secs(600))
            .copy(Copy { from: image, to: format!("/root/{IMAGE}") })
            .host("a", script)
            .run()?
    };
    let complaint = complaints(&report);
    let host = report.host("a").context("no host")?;
    let is_started = host.kernel_log.iter().any(|line| line.text.contains("softhca: this image was started"));
    Ok(match (is_started, host.output.contains("the same")) {
        _ if !complaint.is_empty() => complaint,
        (false, _) => format!("the firmware of the guest did not start the image\n{report}"),
        (_, false) => format!("the guest does not read the image\n{report}"),
        (true, true) => String::new(),
    })
}

/// The image and a topology with it.
fn files(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    fs::create_dir_all(folder)?;
    let (image, topology) = (folder.join(IMAGE), folder.join("rom.toml"));
    fs::write(&image, image_that_speaks())?;
    let text = format!(
        "[[host]]\nname = \"a\"\nmemory = \"1G\"\n\n[[host.hca]]\nname = \"hca0\"\nrom = \"{IMAGE}\"\n"
    );
    fs::write(&topology, text)?;
    Ok((image, topology))
}

/// An image for the firmware of a PC, which calls what is at its byte 3 (PCI Firmware Specification 3.2, section 5).
fn image_that_speaks() -> [u8; SIZE] {
    const STRUCTURE: usize = 0x1c;
    const CODE: usize = 0x40;
    const TEXT: u8 = 0x80;
    // Each byte of the text goes to the first serial port (0x3f8) when that is ready (bit 5 of 0x3fd).
    const PROGRAM: &[u8] = &[
        0xfc, 0x52, 0x56, // cld; push dx; push si
        0xbe, TEXT, 0x00, // mov si, TEXT
        0x2e, 0xac, // next: lodsb, of the code's segment
        0x84, 0xc0, 0x74, 0x11, // test al, al; jz done
        0x88, 0xc4, // mov ah, al
        0xba, 0xfd, 0x03, // mov dx, 0x3fd
        0xec, 0xa8, 0x20, 0x74, 0xfb, // wait: in al, dx; test al, 0x20; jz wait
        0xb2, 0xf8, 0x88, 0xe0, 0xee, // mov dl, 0xf8; mov al, ah; out dx, al
        0xeb, 0xe9, // jmp next
        0x5e, 0x5a, 0x31, 0xc0, 0xcb, // done: pop si; pop dx; xor ax, ax; retf
    ];
    let mut image = [0; SIZE];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    // One block of 512 bytes; a jump to the code.
    put(0, &[0x55, 0xaa, 1, 0xe9, (CODE - 6) as u8, 0]);
    put(0x18, &[STRUCTURE as u8]);
    put(STRUCTURE, b"PCIR");
    // Vendor and device, length of this structure, class, blocks, the last image.
    put(STRUCTURE + 4, &[0xb3, 0x15, 0x13, 0x10]);
    put(STRUCTURE + 0x0a, &[0x18]);
    put(STRUCTURE + 0x0d, &[0x00, 0x07, 0x02]);
    put(STRUCTURE + 0x10, &[1]);
    put(STRUCTURE + 0x15, &[0x80]);
    put(CODE, PROGRAM);
    put(usize::from(TEXT), WORDS);
    let sum = image.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    image[SIZE - 1] = sum.wrapping_neg();
    image
}
