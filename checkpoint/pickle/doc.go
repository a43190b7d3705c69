// SPDX-License-Identifier: Apache-2.0

// Package pickle reads and writes Python's pickles as plain data. It never runs what a
// pickle asks for.
//
// A pickle is a program for a small stack machine. Python's own reader imports any function
// that the program names, and calls it. The decoder here imports and calls nothing. A name
// of Python becomes a [Global]. A call becomes an [Object], which says what was called and
// with which arguments. What such an object means is for the caller: package torchsave knows
// the calls that make a tensor, and package dcp those that make a checkpoint's metadata.
//
// [Decode] takes a list of the globals that the caller knows. Any other global is a
// [ForbiddenError] with the global's name. The decoder knows the protocols 2 to 5. It refuses
// the instructions of older protocols by name.
//
// [Encode] writes the same values with protocol 2 or 4.
//
//	Python                Go
//	None, bool            nil, bool
//	int                   int64, *big.Int if it is larger
//	float, str            float64, string
//	bytes, bytearray      []byte
//	tuple                 [Tuple]
//	list, dict, set       *[List], *[Dict], *[Set]
//	a class, a function   [Global]
//	a call, an instance   *[Object]
//	a persistent id       *[Persistent]
//
// # Caveats
//
// A value that a pickle uses in two places is the same pointer in both. So a small pickle can
// stand for a very large tree. [Limits] bound the bytes, the number of values, their number
// when shared values are counted at each place, and the depth. A value that contains itself is
// an error. A walk over a decoded value therefore ends. A [Dict] keeps its entries in the order
// of the pickle. The decoded values do not refer to the pickle's bytes.
package pickle
