// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/cohort-ml/cohort/launch"
)

// several reports whether the job needs others than this machine.
func (f *torchrunFlags) several() bool {
	return f.maxNodes > 1 || f.backend != "static" && f.backend != "c10d"
}

// nodes makes what joins this machine with the others.
func (f *runFlags) nodes(*launch.Config) (launch.Nodes, error) {
	if f.maxNodes > 1 {
		return nil, fmt.Errorf("%s: this version runs on one machine; start it with --nnodes 1 or without the flag", f.given("nnodes"))
	}
	return nil, fmt.Errorf("%s: on one machine there are static and c10d; leave the flag out", f.given("rdzv-backend"))
}
