// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dist

import (
	"errors"
	"math/rand/v2"
	"time"
)

// TestChaos is skipped where these are.
func cutOff() ([][2]string, error)                           { return nil, errors.ErrUnsupported }
func cutFrom([][2]string)                                    {}
func isolate(time.Duration)                                  {}
func spoil(*rand.Rand) error                                 { return errors.ErrUnsupported }
func strangers(rng *rand.Rand, garbage bool) (func(), error) { return nil, errors.ErrUnsupported }
