// SPDX-License-Identifier: Apache-2.0

package mpi

import (
	"encoding/binary"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/dlopen"
)

// Kind is which binary interface a library has: how handles, constants and the status of a
// receive look in memory. The functions are the same.
type Kind int

// The kinds.
const (
	Standard Kind = iota // the standard ABI of MPI 5, of any implementation
	OpenMPI              // Open MPI 3 to 5
	MPICH                // MPICH 3 to 5 and what is compatible with it: Intel MPI, MVAPICH, Cray MPICH
)

func (k Kind) String() string {
	return [...]string{"the standard ABI", "Open MPI's ABI", "MPICH's ABI"}[k]
}

// handle is a handle of an MPI object: a pointer, or a number of 32 bits.
type handle = uintptr

// abi is the constants of a kind.
type abi struct {
	world, errorsReturn handle
	types               [operation.Bool + 1]handle // of what reduces; 0 where the MPI has none
	bySize              [9]handle                  // integers, by their bytes
	number              handle                     // uint64
	sum, product        handle
	min, max            handle
	band, bor, bxor     handle
	inPlace, noStatus   uintptr
	noRequest           handle
	handleSize          uintptr // the bytes of a handle
	statusSize          int     // the bytes of a status
	anySource           int32
	sourceAt            int // where the status has its source
	thread              int // MPI_THREAD_MULTIPLE
	blocking            func(c *operation.Call) bool
}

// statusSize is more bytes than any kind's status has.
const statusSize = 64

// pin is memory that an MPI call may keep the address of. It is always on the heap.
type pin [statusSize / 8]uint64

func (p *pin) address() uintptr { return uintptr(unsafe.Pointer(p)) }

// number returns a number of 32 bits from the beginning of the memory.
func (p *pin) number() int32 { return int32(uint32(p[0])) }

// at returns a number of 32 bits from some bytes on.
func (p *pin) at(offset int) int32 {
	var b [statusSize]byte
	for i, v := range p {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	return int32(binary.LittleEndian.Uint32(b[offset:]))
}

// standardABI is the table of the MPI 5 standard, chapter "Application Binary Interface".
func standardABI() *abi {
	const int8, int16, int32, int64, uint8, uint64 = 0x240, 0x248, 0x250, 0x258, 0x241, 0x259
	a := &abi{world: 0x101, errorsReturn: 0x143, number: uint64, sum: 0x21, min: 0x22, max: 0x23, product: 0x24, band: 0x28, bor: 0x29, bxor: 0x2a,
		inPlace: 1, noStatus: 0, noRequest: 0x180, handleSize: 8, statusSize: 32, anySource: -1, sourceAt: 0, thread: 4096, blocking: mpichBlocks}
	a.setTypes(0x210, 0x214, int8, int16, int32, int64, uint8)
	return a
}

// mpichABI is the table of the MPICH ABI initiative: numbers of 32 bits.
func mpichABI() *abi {
	a := &abi{world: 0x44000000, errorsReturn: 0x54000001, number: 0x4c00083e, max: 0x58000001, min: 0x58000002, sum: 0x58000003, product: 0x58000004,
		band: 0x58000006, bor: 0x58000008, bxor: 0x5800000a,
		inPlace: ^uintptr(0), noStatus: 1, noRequest: 0x2c000000, handleSize: 4, statusSize: 20, anySource: -2, sourceAt: 8, thread: 3, blocking: mpichBlocks}
	a.setTypes(0x4c00040a, 0x4c00080b, 0x4c000137, 0x4c000238, 0x4c000439, 0x4c00083a, 0x4c00013b)
	return a
}

// openMPIABI reads the table of Open MPI, whose handles are addresses of its variables.
func openMPIABI(lib *dlopen.Library) (*abi, string) {
	missing := ""
	at := func(name string) handle {
		address, ok := lib.Lookup(name)
		if !ok && missing == "" {
			missing = name
		}
		return address
	}
	a := &abi{world: at("ompi_mpi_comm_world"), errorsReturn: at("ompi_mpi_errors_return"), number: at("ompi_mpi_uint64_t"), sum: at("ompi_mpi_op_sum"), product: at("ompi_mpi_op_prod"),
		min: at("ompi_mpi_op_min"), max: at("ompi_mpi_op_max"), band: at("ompi_mpi_op_band"), bor: at("ompi_mpi_op_bor"), bxor: at("ompi_mpi_op_bxor"),
		inPlace: 1, noStatus: 0, noRequest: at("ompi_request_null"), handleSize: 8, statusSize: 24, anySource: -1, sourceAt: 0, thread: 3, blocking: openMPIBlocks}
	a.setTypes(at("ompi_mpi_float"), at("ompi_mpi_double"), at("ompi_mpi_int8_t"), at("ompi_mpi_int16_t"), at("ompi_mpi_int32_t"), at("ompi_mpi_int64_t"), at("ompi_mpi_uint8_t"))
	return a, missing
}

func (a *abi) setTypes(f32, f64, i8, i16, i32, i64, u8 handle) {
	a.types[operation.Float32], a.types[operation.Float64] = f32, f64
	a.types[operation.Int8], a.types[operation.Int32], a.types[operation.Int64], a.types[operation.Uint8] = i8, i32, i64, u8
	a.bySize[1], a.bySize[2], a.bySize[4], a.bySize[8] = i8, i16, i32, i64
}

// op returns the MPI's reduction for one of ours, 0 where it has none with our meaning. MPI
// does not say what Min and Max make of NaN, and has neither bool as a byte nor half floats.
func (a *abi) op(r operation.ReduceOp, d operation.DType) handle {
	if a.types[d] == 0 {
		return 0
	}
	float := d == operation.Float32 || d == operation.Float64
	switch r.Kind() {
	case operation.Sum, operation.Avg:
		return a.sum
	case operation.Product:
		return a.product
	case operation.Min, operation.Max:
		if float {
			return 0
		}
		if r.Kind() == operation.Min {
			return a.min
		}
		return a.max
	case operation.BAnd:
		return a.band
	case operation.BOr:
		return a.bor
	case operation.BXor:
		return a.bxor
	}
	return 0
}

// openMPIBlocks reports whether a collective is one of those that Open MPI does much slower
// without blocking than with (tools/mpi_collectives.c --nonblocking): its nonblocking
// collectives have one algorithm for all sizes. Every rank decides alike.
func openMPIBlocks(c *operation.Call) bool {
	return c.Op == operation.AllReduce || c.Op == operation.AllGather
}

// mpichBlocks is the same for MPICH, whose nonblocking reduce-scatter of 1 MiB takes twice as
// long.
func mpichBlocks(c *operation.Call) bool {
	return c.Op == operation.ReduceScatter && c.Parts == nil || c.Op == operation.AllGather
}
