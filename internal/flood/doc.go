// SPDX-License-Identifier: Apache-2.0

// Package flood is for tests: strangers who hold as many connections to a listener
// as they can, and replace those that it closes at once.
// Linux has them alone.
package flood
