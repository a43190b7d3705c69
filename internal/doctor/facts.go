// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"strconv"

	"github.com/cohort-ml/cohort/internal/devices"
	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// Facts are what is known of a host.
type Facts struct {
	// Host is the host's own name. Machine is equal for two names of one host.
	Host    string `json:"host"`
	Machine string `json:"machine,omitempty"`
	Options Options
	// Print has versions, limits, and settings of the kernel.
	Print *fingerprint.Fingerprint `json:"fingerprint"`
	// Room is how much memory is left, and RoomOf says by which limit.
	Room   uint64 `json:"room_bytes,omitempty"`
	RoomOf string `json:"room_of,omitempty"`
	// Kills counts the processes of the cgroup that the kernel has killed for memory.
	Kills      int         `json:"oom_kills,omitempty"`
	Disks      []Disk      `json:"disks,omitempty"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	Lookups    []Lookup    `json:"lookups,omitempty"`
	Filter     Filter      `json:"filter"`
	// Loopback is the error of a connection from this host to itself by 127.0.0.1, "" if
	// it works.
	Loopback string `json:"loopback,omitempty"`
	// PortError says why nothing can listen at the master's port, "" if it can.
	PortError string `json:"port_error,omitempty"`
	// MasterAddr is the variable MASTER_ADDR.
	MasterAddr string         `json:"master_addr,omitempty"`
	GPUs       []devices.GPU  `json:"gpus,omitempty"`
	GPUNotes   []string       `json:"gpu_notes,omitempty"`
	Rates      *devices.Rates `json:"rates,omitempty"`
}

// Options say what a job will need of a host.
type Options struct {
	Ranks int    `json:"ranks"` // of the job on this host
	World int    `json:"world"` // ranks of the whole job
	Port  int    `json:"port"`  // at which rank 0 will listen
	Dir   string `json:"dir"`   // for checkpoints and logs; "" for the working directory
}

// Disk is a directory that jobs write to.
type Disk struct {
	Use       string  `json:"use"` // "dir", "tmp" or "shm"
	Path      string  `json:"path"`
	FS        string  `json:"fs,omitempty"` // "ext4", "nfs", …
	Size      uint64  `json:"size_bytes,omitempty"`
	Free      uint64  `json:"free_bytes,omitempty"`
	Inodes    uint64  `json:"inodes,omitempty"` // of the file system; 0 if it has no limit
	FreeNodes uint64  `json:"inodes_free,omitempty"`
	NoExec    bool    `json:"noexec,omitempty"`
	Error     string  `json:"error,omitempty"`       // of a small write, "" if it works
	SyncMS    float64 `json:"sync_ms,omitempty"`     // a small write that is made durable
	BytesPerS float64 `json:"bytes_per_s,omitempty"` // of a large write that is made durable
}

// Interface is a network interface that is up.
type Interface struct {
	Name     string         `json:"name"`
	MTU      int            `json:"mtu"`
	Loopback bool           `json:"loopback,omitempty"`
	Addrs    []netip.Prefix `json:"addrs,omitempty"`
}

// Lookup is where a name leads.
type Lookup struct {
	Name   string       `json:"name"`
	Own    bool         `json:"own,omitempty"` // the host's own name
	Addrs  []netip.Addr `json:"addrs,omitempty"`
	Error  string       `json:"error,omitempty"`
	Millis int64        `json:"millis,omitempty"`
}

// disk returns the disk of a use, nil if there is none.
func (f *Facts) disk(use string) *Disk {
	for i := range f.Disks {
		if f.Disks[i].Use == use {
			return &f.Disks[i]
		}
	}
	return nil
}

// has reports whether an address is of this host.
func (f *Facts) has(a netip.Addr) bool {
	for _, i := range f.Interfaces {
		for _, p := range i.Addrs {
			if p.Addr() == a {
				return true
			}
		}
	}
	return false
}

// variable returns an environment variable that fingerprints have, "" if it is not set.
func (f *Facts) variable(name string) string { return f.Print.Get(fingerprint.Variables, name) }

// amount returns a number of the fingerprint; ok is false if it is none or unlimited.
func (f *Facts) amount(section, key string) (n float64, ok bool) {
	n, err := strconv.ParseFloat(f.Print.Get(section, key), 64)
	return n, err == nil
}
