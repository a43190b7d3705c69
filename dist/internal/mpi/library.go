// SPDX-License-Identifier: Apache-2.0

package mpi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// Library is an MPI that has been loaded.
type Library struct {
	*dlopen.Library
	Kind    Kind
	Version string // as the library says it, one line
	abi     *abi
	fn      functions
	// handlers are those of signals before the library was loaded.
	handlers *dlopen.Handlers
}

// functions are the addresses of what is called.
type functions struct {
	initThread, initialized, finalized, finalize, errorString, abort         uintptr
	commRank, commSize, commGroup, groupIncl, groupFree, createGroup         uintptr
	commFree, setErrhandler, test, isend, irecv, iprobe, cancel, requestFree uintptr
	iallreduce, ibcast, ireduce, iallgather, iallgatherv, igather, iscatter  uintptr
	ireduceScatterBlock, ireduceScatter, ialltoall, allreduce, allgather     uintptr
	allgatherv, bcast, reduceScatterBlock, testsome                          uintptr
}

// names are the libraries that are looked for, the best first: the standard ABI, Open MPI,
// and MPICH under the names of Debian and of itself.
var names = []struct {
	name string
	kind Kind
}{
	{"libmpi_abi.so.1", Standard}, {"libmpi_abi.so.0", Standard}, {"libmpi.so.40", OpenMPI}, {"libmpi.so.80", OpenMPI}, {"libmpich.so.12", MPICH}, {"libmpi.so.12", MPICH},
}

// Load finds the MPI of the launcher and loads it: COHORT_MPI names a library; else the one
// beside the launcher that started this process is taken, and else what the system's loader
// finds. Several of different kinds are an error where nothing says which is meant.
func Load() (*Library, error) {
	if !dlopen.Built {
		return nil, fmt.Errorf("%w, which an MPI is: build it on Linux with go build -tags mpi", dlopen.ErrNotBuilt)
	}
	handlers := dlopen.SaveHandlers()
	lib, err := find(launcher())
	if err != nil {
		_, restored := handlers.Restore()
		return nil, errors.Join(err, restored)
	}
	lib.handlers = handlers
	return lib, lib.bind()
}

// starter is what has started this process.
type starter struct {
	name string // "" where no launcher of an MPI did
	size int    // how many ranks it has started, 0 where that is not known
	kind Kind   // which MPI it belongs to
	sure bool   // kind is known
	dir  string // where its libraries may be
}

// launcher returns what has started this process, as the environment and its parent say.
func launcher() starter {
	var s starter
	if t, ok := envvar.MPITask(); ok {
		s.name, s.size = t.RankVar, t.Size
	}
	if strings.HasPrefix(s.name, "OMPI_") {
		s.kind, s.sure = OpenMPI, true
	}
	// The program may have been started by a script.
	for pid, i := os.Getppid(), 0; pid > 1 && i < maxAncestors; pid, i = parentOf(pid), i+1 {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			break
		}
		switch base := filepath.Base(exe); {
		case strings.HasPrefix(base, "hydra_"):
			s.kind, s.sure = MPICH, true
		case slices.Contains([]string{"orterun", "orted", "prterun", "prted", "mpirun.openmpi"}, base):
			s.kind, s.sure = OpenMPI, true
		default:
			continue
		}
		s.dir = filepath.Join(filepath.Dir(filepath.Dir(exe)), "lib")
		break
	}
	return s
}

// maxAncestors is how far up the launcher is looked for.
const maxAncestors = 8

// parentOf returns the parent of a process, 0 if it is not known.
func parentOf(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field is the name, in parentheses, which may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// find opens the library that is meant.
func find(by starter) (*Library, error) {
	if path, ok := envvar.MPI.Lookup(); ok {
		lib, err := dlopen.Open(path)
		if err != nil {
			return nil, fmt.Errorf("the MPI that %s names cannot be loaded: %w", envvar.MPI, err)
		}
		return recognise(lib)
	}
	// What lies beside the launcher is its own.
	if by.dir != "" {
		for _, n := range names {
			path := filepath.Join(by.dir, n.name)
			if _, err := os.Stat(path); err != nil {
				continue
			}
			lib, err := dlopen.Open(path)
			if err != nil {
				return nil, fmt.Errorf("the MPI beside the launcher, %s, cannot be loaded: %w", path, err)
			}
			return recognise(lib)
		}
	}
	var found []string
	var first *dlopen.Library
	kinds := map[Kind]bool{}
	for _, n := range names {
		fits := by.kind == n.kind || n.kind == Standard
		if by.sure && !fits || first != nil && kinds[n.kind] {
			continue
		}
		lib, err := dlopen.Open(n.name)
		if err != nil {
			continue
		}
		found = append(found, n.name)
		kinds[n.kind] = true
		if first == nil {
			first = lib
		}
		if by.sure || n.kind == Standard {
			break
		}
	}
	switch {
	case first == nil && by.sure:
		return nil, fmt.Errorf("no library of %v is found, which the launcher of this process belongs to: install it, or name the library's path in %s", by.kind, envvar.MPI)
	case first == nil:
		return nil, fmt.Errorf("no MPI is found (looked for %s): install Open MPI or MPICH, or name the library's path in %s", strings.Join(allNames(), ", "), envvar.MPI)
	case len(found) > 1:
		return nil, fmt.Errorf("there are several MPIs, %s, and the launcher does not show which one it belongs to: name the library in %s, such as %s=%s", strings.Join(found, " and "), envvar.MPI, envvar.MPI, found[0])
	}
	return recognise(first)
}

func allNames() []string {
	var all []string
	for _, n := range names {
		all = append(all, n.name)
	}
	return all
}

// recognise finds out which kind of MPI a library is.
func recognise(lib *dlopen.Library) (*Library, error) {
	l := &Library{Library: lib}
	get, ok := lib.Lookup("MPI_Get_library_version")
	if !ok {
		return nil, fmt.Errorf("%s is no MPI: it has no MPI_Get_library_version", lib.Name)
	}
	text, length := make([]byte, 1<<14), new(pin)
	if code := dlopen.Call(get, uintptr(unsafe.Pointer(unsafe.SliceData(text))), length.address()); int32(code) != 0 {
		return nil, fmt.Errorf("%s: MPI_Get_library_version fails with code %d", lib.Name, int32(code))
	}
	whole := string(text[:max(0, min(int(length.number()), len(text)))])
	l.Version = strings.Join(strings.Fields(strings.SplitN(strings.TrimRight(whole, "\x00"), "\n", 2)[0]), " ")
	if i := strings.Index(l.Version, ", package:"); i > 0 {
		l.Version = l.Version[:i]
	}
	_, open := lib.Lookup("ompi_mpi_comm_world")
	base := filepath.Base(lib.Name)
	switch {
	case strings.HasPrefix(base, "libmpi_abi."):
		l.Kind, l.abi = Standard, standardABI()
	case open:
		var missing string
		l.Kind = OpenMPI
		if l.abi, missing = openMPIABI(lib); missing != "" {
			return nil, fmt.Errorf("%s (%s) has no %s: this version of Open MPI is not known", lib.Name, l.Version, missing)
		}
	case strings.Contains(whole, "MPICH") || strings.Contains(whole, "MVAPICH") || strings.Contains(whole, "Intel"):
		l.Kind, l.abi = MPICH, mpichABI()
	default:
		return nil, fmt.Errorf("%s (%q) is an MPI of no kind that is known: those are Open MPI, MPICH and the standard ABI (libmpi_abi.so)", lib.Name, l.Version)
	}
	return l, nil
}

// bind looks up the functions.
func (l *Library) bind() error {
	f := &l.fn
	for name, at := range map[string]*uintptr{
		"Init_thread": &f.initThread, "Initialized": &f.initialized, "Finalized": &f.finalized, "Finalize": &f.finalize, "Error_string": &f.errorString, "Abort": &f.abort,
		"Comm_rank": &f.commRank, "Comm_size": &f.commSize, "Comm_group": &f.commGroup, "Group_incl": &f.groupIncl, "Group_free": &f.groupFree, "Comm_create_group": &f.createGroup,
		"Comm_free": &f.commFree, "Comm_set_errhandler": &f.setErrhandler, "Test": &f.test, "Isend": &f.isend, "Irecv": &f.irecv, "Iprobe": &f.iprobe, "Cancel": &f.cancel, "Request_free": &f.requestFree,
		"Iallreduce": &f.iallreduce, "Ibcast": &f.ibcast, "Ireduce": &f.ireduce, "Iallgather": &f.iallgather, "Iallgatherv": &f.iallgatherv, "Igather": &f.igather, "Iscatter": &f.iscatter,
		"Ireduce_scatter_block": &f.ireduceScatterBlock, "Ireduce_scatter": &f.ireduceScatter, "Ialltoall": &f.ialltoall, "Allreduce": &f.allreduce, "Allgather": &f.allgather,
		"Allgatherv": &f.allgatherv, "Bcast": &f.bcast, "Reduce_scatter_block": &f.reduceScatterBlock, "Testsome": &f.testsome,
	} {
		var ok bool
		if *at, ok = l.Lookup("MPI_" + name); !ok {
			return fmt.Errorf("%s (%s) has no MPI_%s: it is older than MPI 3.0", l.Name, l.Version, name)
		}
	}
	return nil
}

// call calls a function of the MPI and makes an error of its code.
func (l *Library) call(what string, fn uintptr, args ...uintptr) error {
	if code := int32(dlopen.Call(fn, args...)); code != 0 {
		return l.errorOf(what, code)
	}
	return nil
}

func (l *Library) errorOf(what string, code int32) error {
	text, length := make([]byte, 4096), new(pin)
	said := fmt.Sprintf("code %d", code)
	if dlopen.Call(l.fn.errorString, uintptr(code), uintptr(unsafe.Pointer(unsafe.SliceData(text))), length.address()) == 0 {
		said = strings.Join(strings.Fields(string(text[:max(0, min(int(length.number()), len(text)))])), " ")
	}
	return fmt.Errorf("MPI_%s fails: %s", what, said)
}

// flag calls a function that writes a truth.
func (l *Library) flag(what string, fn uintptr) (bool, error) {
	p := new(pin)
	err := l.call(what, fn, p.address())
	return p.number() != 0, err
}

// hasEnded says that the MPI of this process has ended. A library that was unloaded does not
// know it any more.
var hasEnded atomic.Bool

var errEnded = errors.New("the MPI of this process has ended with the job that it left: an MPI begins once in a process")

// initialise initialises the MPI for calls of several threads, and puts the handlers of
// signals back.
func (l *Library) initialise() error {
	if hasEnded.Load() {
		return errEnded
	}
	switch ended, err := l.flag("Finalized", l.fn.finalized); {
	case err != nil:
		return err
	case ended:
		return errEnded
	}
	switch begun, err := l.flag("Initialized", l.fn.initialized); {
	case err != nil:
		return err
	case begun:
		return errors.New("the MPI of this process has been initialised before: a process has one group of all ranks; make others with Group.NewGroup")
	}
	got := new(pin)
	err := l.call("Init_thread", l.fn.initThread, 0, 0, uintptr(l.abi.thread), got.address())
	if _, restored := l.handlers.Restore(); restored != nil {
		err = errors.Join(err, restored)
	}
	switch {
	case err != nil:
		return err
	case int(got.number()) < l.abi.thread:
		return &threadError{l, int(got.number())}
	}
	return l.call("Comm_set_errhandler", l.fn.setErrhandler, l.abi.world, l.abi.errorsReturn)
}

// threadError says that the MPI allows fewer threads than Cohort needs.
type threadError struct {
	lib *Library
	got int
}

func (e *threadError) Error() string {
	return fmt.Sprintf("%s (%s) gives thread level %d, and Cohort needs MPI_THREAD_MULTIPLE (%d): collectives of several groups run at once; use an MPI that was built with it", e.lib.Name, e.lib.Version, e.got, e.lib.abi.thread)
}

// finalise ends the MPI of this process, and waits for the other ranks. It leaves the handlers
// of signals as they are.
func (l *Library) finalise() error {
	handlers := dlopen.SaveHandlers()
	hasEnded.Store(true)
	err := l.call("Finalize", l.fn.finalize)
	if err == nil && l.Kind != OpenMPI {
		// MPICH 5 takes leave of its launcher at the end of the program. A launcher that
		// loses a process without that ends the others.
		err = l.Library.Close()
	}
	_, restored := handlers.Restore()
	return errors.Join(err, restored)
}
