// SPDX-License-Identifier: Apache-2.0

//go:build race

package dist

// raceDetector says that the tests run several times slower than the program does.
const raceDetector = true
