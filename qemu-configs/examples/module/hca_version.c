// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The least that talks to the adapter: maps BAR 0 of the first ConnectX-4 and prints the firmware's version from the
 * initialization segment. It takes no hold of the device: load it before mlx5_core, or beside it.
 */
#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>

#define CONNECTX4 0x1013
#define FW_REV 0x0
#define CMDIF_REV_FW_SUB 0x4

static int __init hca_version_init(void)
{
	struct pci_dev *dev = pci_get_device(PCI_VENDOR_ID_MELLANOX, CONNECTX4, NULL);
	void __iomem *segment;
	u32 revision, sub;

	if (!dev)
		return -ENODEV;
	segment = pci_iomap(dev, 0, PAGE_SIZE);
	if (!segment) {
		pci_dev_put(dev);
		return -ENOMEM;
	}
	/* Reads are answered only when the device decodes memory. */
	if (!pci_enable_device_mem(dev)) {
		revision = ioread32be(segment + FW_REV);
		sub = ioread32be(segment + CMDIF_REV_FW_SUB);
		pr_info("hca_version: %s has firmware %u.%u.%u, command interface %u\n", pci_name(dev),
			revision & 0xffff, revision >> 16, sub & 0xffff, sub >> 16);
		pci_disable_device(dev);
	}
	pci_iounmap(dev, segment);
	pci_dev_put(dev);
	return 0;
}

static void __exit hca_version_exit(void)
{
}

module_init(hca_version_init);
module_exit(hca_version_exit);
MODULE_DESCRIPTION("Prints the version of an adapter's firmware");
MODULE_LICENSE("Dual MIT/GPL");
