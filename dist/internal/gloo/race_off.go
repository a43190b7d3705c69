// SPDX-License-Identifier: Apache-2.0

//go:build !race

package gloo

const raceEnabled = false
