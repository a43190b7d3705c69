// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

// runFloodPart runs nothing: there are no floods here.
func runFloodPart([]string) (done bool, code int) { return false, 0 }
