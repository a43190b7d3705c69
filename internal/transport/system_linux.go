// SPDX-License-Identifier: Apache-2.0

package transport

// abstractSockets says that a unix address may begin with "@" and then has no
// name in the file system.
const abstractSockets = true
