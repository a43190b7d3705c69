// SPDX-License-Identifier: Apache-2.0

// Package devices lists what a rank can compute on: the processors of this machine and
// its GPUs. [Find] reads the lists that the system has. [Measure] measures how fast the
// processors multiply and copy. [CheckProduct] compares a product with a plain loop.
//
// Nothing is kept between calls. A field that the system does not tell is zero or empty.
// On systems other than Linux only the number of threads is known.
package devices

// List is what a machine has.
type List struct {
	CPU  CPU   `json:"cpu"`
	GPUs []GPU `json:"gpus"`
	// Notes say what could not be read, and why.
	Notes []string `json:"notes,omitempty"`
}

// CPU describes the processors that this process may use.
type CPU struct {
	Model string `json:"model,omitempty"`
	// Threads is the number of processors, as the system counts them. Cores, Sockets and
	// NUMANodes are what they belong to.
	Threads   int `json:"threads"`
	Cores     int `json:"cores,omitempty"`
	Sockets   int `json:"sockets,omitempty"`
	NUMANodes int `json:"numa_nodes,omitempty"`
	// Online counts the processors of the machine, also those that this process may not use.
	Online int `json:"online,omitempty"`
	// Quota is how many processors' time the cgroup may use; 0 for no limit.
	Quota float64 `json:"quota,omitempty"`
	// Features are those instructions that kernels can use, of those that the processor has.
	Features []string `json:"features,omitempty"`
	Caches   []Cache  `json:"caches,omitempty"`
	// Memory is the size of the machine's memory in bytes.
	Memory uint64 `json:"memory_bytes,omitempty"`
	// Rates is what [Measure] has found.
	Rates *Rates `json:"rates,omitempty"`
}

// Cache is a cache of a processor.
type Cache struct {
	Level int    `json:"level"`
	Kind  string `json:"kind"` // "data", "instruction" or "unified"
	Bytes uint64 `json:"bytes"`
	// SharedBy is the number of processors that use one such cache.
	SharedBy int `json:"shared_by,omitempty"`
}

// GPU describes a GPU. Cohort computes on processors; GPUs serve the PyTorch ranks of a job.
type GPU struct {
	Index  int    `json:"index"`
	Model  string `json:"model"`
	UUID   string `json:"uuid,omitempty"`
	Bus    string `json:"bus,omitempty"`
	Driver string `json:"driver,omitempty"`
	Memory uint64 `json:"memory_bytes,omitempty"`
	Used   uint64 `json:"memory_used_bytes,omitempty"`
	// NUMANode is the NUMA node of its bus, -1 if the system does not say.
	NUMANode int `json:"numa_node"`
	// Links are the connections to the GPUs of the list, by their index, as nvidia-smi names
	// them: "NV18", "PIX", "SYS"; "" for itself.
	Links []string `json:"links,omitempty"`
}

// Rates are measured rates of the processors.
type Rates struct {
	Threads int `json:"threads"`
	// GFlopPerSec is the rate of a product of float32 matrices with 1,024 rows and columns.
	GFlopPerSec float64 `json:"gflop_per_s"`
	// CopyBytesPerSec is how many bytes a copy reads and writes in a second.
	CopyBytesPerSec float64 `json:"copy_bytes_per_s"`
}
