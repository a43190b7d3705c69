// SPDX-License-Identifier: Apache-2.0

// Package goroutine tells goroutines apart.
package goroutine

// Unknown is no ID. It is the ID of all goroutines where they cannot be told apart.
const Unknown = 1
