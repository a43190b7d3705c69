// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/mem"
)

// Data is what a call reads or writes: elements without gaps in a borrowed
// buffer. The zero value is no data at all.
type Data struct {
	Buffer   mem.Buffer
	DType    operation.DType
	NumElems int
	// Device is the device whose memory holds the elements, by its name; "" is the host.
	// A communicator is given data of the kind of device that it was opened for, and no other.
	Device string
}

// Bytes returns exactly the bytes of the elements.
func (d Data) Bytes() []byte { return d.Buffer.Data[:d.NumElems*d.DType.Size()] }

// KeyNumber returns a hash (FNV-1a) of the key by which the members of a group have met.
func KeyNumber(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h
}
