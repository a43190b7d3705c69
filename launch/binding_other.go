// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

import "errors"

// bind returns an error: only Linux lets a process choose its processors.
func bind(how Binding, numRanks int) ([][]int, error) {
	if _, err := bindRanks(how, []processor{{}}, 1, nil); err != nil {
		return nil, err
	}
	return nil, errors.New("this system does not bind processes to processors")
}

func boundTo(_ []int, fn func() error) error { return fn() }
