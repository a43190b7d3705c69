// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/device/lazy"
	"github.com/cohort-ml/cohort/tensor"
)

// waits is a module that waits for the device.
type waits struct{}

func (*waits) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	x.Float32s()
	return x
}

// TestLateFaultBlamesNoModule: a module that waits for the device, and so meets the
// mistake of an earlier one, is not named for it.
func TestLateFaultBlamesNoModule(t *testing.T) {
	late := lazy.New(1)
	t.Cleanup(late.Close)
	m := NewSequential(NewEmbedding(&Build{Device: late}, 5, 2), &waits{})
	step := func() (err error) {
		c := Training(t.Context(), WithDevice(late))
		defer c.Close()
		defer c.Recover(&err)
		c.Call(m, tensor.On(late).FromInt64([]int64{7}))
		return nil
	}
	var err error
	late.Allow(func() { err = step() })
	var found *tensor.Error
	if !errors.As(err, &found) || !found.Late || found.Op != "embedding" || !strings.Contains(err.Error(), "id 7 at position 0") || errors.As(err, new(*ForwardError)) {
		t.Errorf("the step ended with %v, want the embedding's error and no module", err)
	}
}
