// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// PieceBytes is the most that is read of a tensor at once. It is a multiple of the
// chunks of one MiB that a checkpoint has checksums of.
const PieceBytes = 4 << 20

// Pieces calls use with the bytes of a tensor, piece after piece, and with the offset
// of each piece. The bytes are valid until use returns. While use works on a piece, the
// next one is read.
func Pieces(ctx context.Context, src checkpoint.Source, info safetensors.Info, use func(b []byte, offset int64) error) error {
	total := info.NumBytes()
	if total < 0 {
		return fmt.Errorf("%s: tensor %q has a shape that makes no sense: %v of %v", src.Name(), info.Name, info.Shape, info.DType)
	}
	type piece struct {
		b      []byte
		offset int64
		err    error
	}
	ctx, stop := context.WithCancel(ctx)
	read, spare := make(chan piece), make(chan []byte, 2)
	for range cap(spare) {
		spare <- nil
	}
	go func() {
		defer close(read)
		for offset := int64(0); offset < total; offset += PieceBytes {
			var b []byte
			select {
			case b = <-spare:
			case <-ctx.Done():
				return
			}
			n := int(min(PieceBytes, total-offset))
			if b == nil {
				b = make([]byte, n)
			}
			b = b[:n]
			p := piece{b, offset, src.ReadRange(info.Name, b, offset)}
			select {
			case read <- p:
			case <-ctx.Done():
				return
			}
			if p.err != nil {
				return
			}
		}
	}()
	defer func() {
		stop()
		for range read { // until the reader has ended
		}
	}()
	for p := range read {
		if p.err != nil {
			return p.err
		}
		if err := use(p.b, p.offset); err != nil {
			return err
		}
		spare <- p.b[:cap(p.b)]
	}
	return context.Cause(ctx)
}
