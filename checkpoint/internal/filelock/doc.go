// SPDX-License-Identifier: Apache-2.0

// Package filelock keeps processes apart by the lock of a file or directory. The lock ends with
// its process, whatever happens to the process.
package filelock
