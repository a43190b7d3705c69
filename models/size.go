// SPDX-License-Identifier: Apache-2.0

package models

import "fmt"

// size is a number of a configuration that must be from 1 to most.
type size struct {
	name        string
	value, most int
}

func checkSizes(model string, sizes []size) error {
	for _, s := range sizes {
		if s.value < 1 || s.value > s.most {
			return fmt.Errorf("models: the %s of a %s is %d, want 1 to %d", s.name, model, s.value, s.most)
		}
	}
	return nil
}
