// SPDX-License-Identifier: Apache-2.0

// Package browser tests the page of monitor/report and monitor/dashboard in Chromium (Debian's
// package chromium), with recorded runs of 2, 64 and 512 ranks: how fast it is, whether everything can be
// read and reached, and whether a person finds the answers. It has no code for programs.
package browser
