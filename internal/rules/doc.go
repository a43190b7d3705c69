// SPDX-License-Identifier: Apache-2.0

// Package rules holds the house rules as tests: which package may import
// which, what every file begins with, how long it may be, what has to be
// documented. They read the source tree, run in about a second and say for each
// violation where it is and what to do about it.
//
// The package has no code of its own. A rule that is in the way of something
// good is changed here, in the change that needs it, with the reason in its
// comment; there are no exceptions by annotation.
package rules
