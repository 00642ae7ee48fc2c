# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What accelerators can do, from their makers' public specifications.

Peaks are for dense bfloat16 products (NVIDIA's sheets print the figure with 2:4 sparsity, which
is twice as much). Bandwidths of interconnects are printed for both directions together; here they
are for one direction, as a ring collective uses them, and for TPUs for one axis of the torus.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Hardware:
  """One chip and its links.

  Attributes:
    name: what it is called.
    peak_flops: multiplications and additions a second, dense bfloat16.
    memory_bandwidth: bytes a second of its HBM.
    memory_bytes: of its HBM.
    interconnect_bandwidth: bytes a second that a chip sends to its neighbours of one mesh axis
      while it receives as many: NVLink, or both links of one torus axis.
    domain_size: chips that these links join; an axis that reaches further uses the network.
    network_bandwidth: bytes a second a chip between domains.
    collective_latency: seconds that a collective takes beside its bytes. No maker states it: an
      order of magnitude for small messages, to be replaced by a measurement where there is one.
    source: where the figures come from.
  """

  name: str
  peak_flops: float
  memory_bandwidth: float
  memory_bytes: float
  interconnect_bandwidth: float
  domain_size: int
  network_bandwidth: float
  collective_latency: float
  source: str

  @property
  def saturation_flops_per_byte(self) -> float:
    """Operations a byte of memory at which arithmetic takes as long as reading."""
    return self.peak_flops / self.memory_bandwidth


HARDWARE = {
  # 400 GB/s both ways over 4 links in a 2-D torus: 2 links an axis. Data centre network of a pod
  # of 256 chips: 6.4 Tbit/s.
  "v5e": Hardware(
    name="TPU v5e",
    peak_flops=197e12,
    memory_bandwidth=819e9,
    memory_bytes=16e9,
    interconnect_bandwidth=400e9 / 2 / 2,
    domain_size=256,
    network_bandwidth=6.4e12 / 8 / 256,
    collective_latency=5e-6,
    source="https://cloud.google.com/tpu/docs/v5e",
  ),
  # 1,200 GB/s both ways over 6 links in a 3-D torus; the data centre network has 50 Gbit/s a chip.
  "v5p": Hardware(
    name="TPU v5p",
    peak_flops=459e12,
    memory_bandwidth=2765e9,
    memory_bytes=95e9,
    interconnect_bandwidth=1200e9 / 2 / 3,
    domain_size=8960,
    network_bandwidth=50e9 / 8,
    collective_latency=5e-6,
    source="https://cloud.google.com/tpu/docs/v5p",
  ),
  # 1,979 Tflop/s with sparsity; NVLink 900 GB/s both ways in a node of 8; one 400 Gbit/s adapter a
  # GPU between nodes (DGX H100).
  "h100": Hardware(
    name="H100 SXM",
    peak_flops=989.5e12,
    memory_bandwidth=3350e9,
    memory_bytes=80e9,
    interconnect_bandwidth=900e9 / 2,
    domain_size=8,
    network_bandwidth=400e9 / 8,
    collective_latency=10e-6,
    source="https://www.nvidia.com/en-us/data-center/h100/",
  ),
  "h200": Hardware(
    name="H200 SXM",
    peak_flops=989.5e12,
    memory_bandwidth=4800e9,
    memory_bytes=141e9,
    interconnect_bandwidth=900e9 / 2,
    domain_size=8,
    network_bandwidth=400e9 / 8,
    collective_latency=10e-6,
    source="https://www.nvidia.com/en-us/data-center/h200/",
  ),
}


def find_hardware(name: str) -> Hardware:
  """The entry of `HARDWARE` of that name.

  Raises:
    ValueError: for another name.
  """
  if name not in HARDWARE:
    raise ValueError(f"hardware must be one of {', '.join(HARDWARE)}, got {name!r}")
  return HARDWARE[name]
