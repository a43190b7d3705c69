// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// sizes is the value of a flag that takes numbers of bytes: "4,64K,1M". K, M and G are
// powers of 1024, and so are KiB, MiB and GiB.
type sizes struct {
	values  *[]int
	changed bool
}

func (s *sizes) String() string {
	texts := make([]string, len(*s.values))
	for i, n := range *s.values {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ",")
}

// Type implements [pflag.Value].
func (s *sizes) Type() string { return "sizes" }

// Set implements [pflag.Value].
func (s *sizes) Set(text string) error {
	var values []int
	for item := range strings.SplitSeq(text, ",") {
		n, err := parseSize(item)
		if err != nil {
			return err
		}
		values = append(values, n)
	}
	if s.changed { // the flag is given more than once
		values = append(*s.values, values...)
	}
	*s.values, s.changed = values, true
	return nil
}

func parseSize(text string) (int, error) {
	number, shift := strings.TrimSpace(text), 0
	number = strings.TrimSuffix(strings.TrimSuffix(number, "iB"), "ib")
	if n := len(number); n > 0 {
		if i := strings.IndexByte("kKmMgG", number[n-1]); i >= 0 {
			number, shift = number[:n-1], 10*(i/2+1)
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || shift == 0 && number != strings.TrimSpace(text) || bits.Len64(n)+shift > 63 {
		return 0, fmt.Errorf("size %q: want a number of bytes, or one of KiB, MiB or GiB, such as 4, 64K or 1M", text)
	}
	return int(n << shift), nil
}

// intFlag is the value of a flag that torchrun reads with Python's int(): 010 is ten,
// not eight.
type intFlag int

func (f *intFlag) Set(text string) error {
	n, err := envvar.ParseInt(text)
	if err != nil {
		return errors.New("want an integer")
	}
	*f = intFlag(n)
	return nil
}

func (f *intFlag) String() string { return strconv.Itoa(int(*f)) }
func (*intFlag) Type() string     { return "int" }

// floatFlag is the value of a flag that torchrun reads with Python's float().
type floatFlag float64

func (f *floatFlag) Set(text string) error {
	v, err := envvar.ParseFloat(text)
	if err != nil {
		return errors.New("want a number")
	}
	*f = floatFlag(v)
	return nil
}

func (f *floatFlag) String() string { return strconv.FormatFloat(float64(*f), 'g', -1, 64) }
func (*floatFlag) Type() string     { return "float" }
