// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strconv"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// intFlag is a flag that torchrun reads by Python's int(): 010 is ten, not eight.
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

// floatFlag is one that it reads by float().
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
