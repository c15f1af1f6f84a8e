//! The `Client` of the crate `vfio_user` as the independent other end.
//!
//! Its known faults are worked around: `resettable()` is inverted, and it neither looks at error
//! replies nor reads past them, so only calls that succeed go through it.

use std::os::fd::AsRawFd;

use crate::common::{Server, eventfd, memfd};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_user::Client;

#[test]
fn a_client_finds_the_device() {
    let server = Server::start(&["a"]);
    let mut client = Client::new(&server.socket("a")).unwrap();
    let sizes: Vec<u64> = (0..9).map(|i| client.region(i).unwrap().size).collect();
    assert_eq!(sizes, [32 << 20, 0, 8 << 10, 0, 0, 0, 0, 4096, 0]);
    // A mappable region would turn off posted writes in QEMU.
    assert!((0..9).all(|i| client.region(i).unwrap().flags & VFIO_REGION_INFO_FLAG_MMAP == 0));
    let irq = client.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).unwrap();
    assert!(irq.count >= 64);
    assert_eq!(irq.flags & (VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE), VFIO_IRQ_INFO_EVENTFD);

    let mut id = [0; 4];
    client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut id).unwrap();
    assert_eq!(id, [0xb3, 0x15, 0x13, 0x10]);
    // Firmware revision: the kernel's quirk wants a minor of 14 to 99.
    let mut revision = [0; 4];
    client.region_read(0, 0, &mut revision).unwrap();
    let minor = u16::from_be_bytes([revision[0], revision[1]]);
    assert!((14..=99).contains(&minor), "{revision:x?}");
}

#[test]
fn interrupts_reach_the_client() {
    let server = Server::start(&["a"]);
    let mut client = Client::new(&server.socket("a")).unwrap();
    let (first, second) = (eventfd(), eventfd());
    client
        .set_irqs(
            VFIO_PCI_MSIX_IRQ_INDEX,
            VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
            5,
            2,
            &[first.as_raw_fd(), second.as_raw_fd()],
        )
        .unwrap();
    let trigger = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, trigger, 6, 1, &[]).unwrap();
    assert_eq!(second.read().unwrap(), 1);
    assert!(first.read().is_err());
    // A count of 0 disconnects all: the interrupt waits in the PBA.
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, trigger, 0, 0, &[]).unwrap();
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, trigger, 5, 1, &[]).unwrap();
    assert!(first.read().is_err());
    let mut pba = [0; 8];
    client.region_read(2, 0x1000, &mut pba).unwrap();
    assert_eq!(u64::from_le_bytes(pba), 1 << 5);
}

#[test]
fn one_client_after_the_other() {
    let server = Server::start(&["a"]);
    for _ in 0..3 {
        let mut client = Client::new(&server.socket("a")).unwrap();
        let memory = memfd(1 << 20);
        client.dma_map(0, 0x1_0000_0000, 1 << 20, memory.as_raw_fd()).unwrap();
        // Nothing of the last client is left: bus mastering is off again.
        let mut command = [0; 2];
        client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 4, &mut command).unwrap();
        assert_eq!(command, [0, 0]);
        client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, 4, &[6, 0]).unwrap();
        client.dma_unmap(0x1_0000_0000, 1 << 20).unwrap();
        client.reset().unwrap();
        client.shutdown().unwrap();
    }
    // The last end may not have been noticed yet; the next client is the proof of it.
    drop(server.client("a"));
    let metrics = server.ask("metrics");
    assert_eq!(metrics["hcas"][0]["clients"], 4);
    assert_eq!(metrics["hcas"][0]["resets"], 3);
}
