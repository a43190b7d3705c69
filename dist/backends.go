// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/internal/mpi"
	"github.com/cohort-ml/cohort/dist/internal/pytorch"
	"github.com/cohort-ml/cohort/tensor"
)

// backends is all backends there are, by the names that [WithBackend] takes. Package
// dist/internal/backend says what a backend consists of.
var backends = []backendEntry{
	{name: "native", devices: []string{hostKind}, start: meeting.Start},
	{name: "gloo", devices: []string{hostKind}, start: pytorch.Start},
	{name: "mpi", devices: []string{hostKind}, start: mpi.Start},
}

// backendEntry is a row of the table of backends.
type backendEntry struct {
	name    string
	devices []string // the kinds of devices whose memory it moves
	// start forms groups, and moves the memory of the host. It is nil for a backend that
	// needs ranks which another one has brought together.
	start backend.Start
	// open opens communicators for a kind of device in groups that exist; nil where start
	// is all that there is.
	open backend.Open
}

// hostKind is the kind of device that stands for the memory of the host.
const hostKind = "cpu"

// WithBackend chooses how data moves. "native", the default, is between Cohort's
// ranks. "gloo" makes this process a rank of a PyTorch job; see the package's
// section on PyTorch. "mpi" moves data by the MPI whose launcher, mpirun or srun, has started
// this process: the MPI says which rank it is, and the program has to be built with -tags mpi
// (docs/mpi.md). Where no option names a backend, Init takes COHORT_BACKEND. Of the options of [Group.NewGroup], "native" makes a group
// of Go members in such a job.
//
// A group may have a backend for each kind of device: "cpu:native" names the one for the
// memory of the host, and more pairs follow after commas. A name without a kind is for the host. A group that
// [Group.NewGroup] makes has its parent's for the kinds that are not named.
func WithBackend(name string) Option {
	return func(o *options) error {
		chosen := map[string]string{}
		for pair := range strings.SplitSeq(name, ",") {
			kind, backend, ok := strings.Cut(pair, ":")
			if !ok {
				kind, backend = hostKind, pair
			}
			if err := checkBackend(kind, backend); err != nil {
				return err
			}
			if _, twice := chosen[kind]; twice {
				return fmt.Errorf("WithBackend(%q): there are two backends for %q", name, kind)
			}
			chosen[kind] = backend
		}
		o.backends = chosen
		return nil
	}
}

// kindOf returns the kind of a device, given its name: "cuda" of "cuda:0".
func kindOf(device string) string {
	kind, _, _ := strings.Cut(device, ":")
	return kind
}

// backendFor returns the name of the group's backend for a kind of device.
func (g *Group) backendFor(kind string) string {
	return cmp.Or(g.devices[kind], backends[0].name)
}

// commFor returns the communicator for a device that is not the host, nil if there is none.
func (g *Group) commFor(device string) backend.Communicator { return g.comms[kindOf(device)] }

// onHost reports whether the host's backend moves a tensor: one on the CPU, and one on
// a device whose memory the CPU sees, unless a backend is there for that device.
func (g *Group) onHost(t *tensor.Tensor) bool {
	dev := t.Device()
	return dev == tensor.CPU() || g.commFor(dev.Name()) == nil && tensor.CPUSees(dev)
}

// findBackend returns a backend's row, nil if there is none of the name.
func findBackend(name string) *backendEntry {
	if i := slices.IndexFunc(backends, func(b backendEntry) bool { return b.name == name }); i >= 0 {
		return &backends[i]
	}
	return nil
}

// checkBackend returns why a backend cannot be the one for a kind of device.
func checkBackend(kind, name string) error {
	b := findBackend(name)
	if b == nil {
		names := make([]string, len(backends))
		for i := range backends {
			names[i] = strconv.Quote(backends[i].name)
		}
		return fmt.Errorf("no backend %q: there are %s", name, strings.Join(names, " and "))
	}
	if !slices.Contains(b.devices, kind) {
		return fmt.Errorf("backend %q does not move the memory of %q: it is for %s", name, kind, strings.Join(b.devices, ", "))
	}
	return nil
}
