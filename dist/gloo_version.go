// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"
	"strconv"
	"strings"
)

// pytorch is the version of PyTorch that a job's other ranks run, as far as that matters:
// 100 times the major number and the minor one.
type pytorch int

const (
	pytorchAny  pytorch = 0 // not said: it is found out
	pytorch1_13 pytorch = 113
	pytorch2_2  pytorch = 202 // the first of those that are known of 2
	// pytorch2 is one of 2.2 and later of which no more is known; it counts as the newest.
	pytorch2 pytorch = 299
)

// From which version on Gloo's ranks have what earlier ones have not.
const (
	scatters       pytorch = 203 // reduce_scatter_tensor: 2.2 makes a reduce and a scatter of it
	averages       pytorch = 208 // ReduceOp.AVG
	scattersLists  pytorch = 208 // reduce_scatter of a list
	scattersAnyhow pytorch = 209 // reduce_scatter of other things than sums: it was a sum, whatever was asked for
)

func (p pytorch) String() string {
	switch p {
	case pytorchAny:
		return "PyTorch"
	case pytorch2:
		return "PyTorch 2"
	}
	return fmt.Sprintf("PyTorch %d.%d", p/100, p%100)
}

// parsePyTorch reads a version as PyTorch prints it.
func parsePyTorch(version string) (pytorch, error) {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	minor = strings.TrimRight(minor, "abcdefghijklmnopqrstuvwxyz+")
	switch n, err := strconv.Atoi(minor); {
	case major == "1" && err == nil && n == 13:
		return pytorch1_13, nil
	case major == "2" && rest == "":
		return pytorch2, nil
	case major == "2" && err == nil && n >= 2 && n < 99:
		return pytorch(200 + n), nil
	}
	return pytorchAny, fmt.Errorf("no PyTorch %q: there are \"1.13\", and \"2.2\" and later", version)
}

// WithPyTorch says which PyTorch the other ranks of a job with the backend "gloo" run, as
// torch.__version__ says it: "1.13.1", "2.6.0". Whether it is 1.13 or a later one is found
// out, and where PyTorch serves the store also about which: say it where another does, or
// where a [PyTorchError] takes the version for an earlier one, so that what it does not have
// is refused before anything is sent. "2" is the newest.
func WithPyTorch(version string) Option {
	return func(o *options) (err error) {
		if o.pytorch, err = parsePyTorch(version); err != nil {
			return fmt.Errorf("WithPyTorch: %w", err)
		}
		return o.onlyInit("WithPyTorch")
	}
}
