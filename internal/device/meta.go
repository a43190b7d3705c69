// SPDX-License-Identifier: Apache-2.0

package device

// Meta is the device without data: shapes and the tape work, values do not
// exist. It plans memory and partitions for models that fit on no machine.
var Meta Device = meta{}

type meta struct{}

func (meta) Name() string                               { return "meta" }
func (meta) Alloc(size int, _ bool) Memory              { return Memory{Size: size} }
func (meta) Free(Memory)                                {}
func (meta) Write(Memory, int, []byte)                  {}
func (meta) Read(Memory, int, []byte)                   {}
func (meta) Late() bool                                 { return false }
func (meta) Fault(bool) Fault                           { return Fault{} }
func (meta) Fill(Array, float64)                        {}
func (meta) Copy(_, _ Array)                            {}
func (meta) Axpy(Array, float64, Array)                 {}
func (meta) Unary(Unary, Array, Array)                  {}
func (meta) Binary(_ Binary, _, _, _ Array)             {}
func (meta) BinaryScalar(Binary, Array, Array, float64) {}
func (meta) Where(_, _, _, _ Array)                     {}
func (meta) ArgReduce(Reduction, Array, Array, int)     {}
func (meta) Reduce(Reduction, Array, Array)             {}
func (meta) SumSquares(Array, ...Array)                 {}
func (meta) MatMul(_, _, _, _ Array, _ float32)         {}
func (meta) Gather(_, _, _ Array, _ *Check)             {}
func (meta) ScatterAdd(_, _, _ Array)                   {}
func (meta) Fused(Op, ...Array) bool                    { return true }
