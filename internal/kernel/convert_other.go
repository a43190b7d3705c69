// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

func toBF16(dst []uint16, src []float32)   { portableToBF16(dst, src) }
func fromBF16(dst []float32, src []uint16) { portableFromBF16(dst, src) }
func roundBF16(dst, src []float32)         { portableRoundBF16(dst, src) }
func toF16(dst []uint16, src []float32)    { portableToF16(dst, src) }
func fromF16(dst []float32, src []uint16)  { portableFromF16(dst, src) }
