// SPDX-License-Identifier: Apache-2.0

// Package trials tests package checkpoint from the outside. It has tests alone.
//
// A trial draws a state, a mesh of ranks and perhaps a fault. It saves the state, loads it
// on another mesh, and compares each byte with the bytes that were drawn. The oracle is
// code of these tests: it cuts a tensor into boxes byte by byte, and does not call what it
// tests. Tests of models use packages parallel and train, which lie above package
// checkpoint. That is why the trials are a package of their own.
//
// CI runs a sample of each kind of trial. The flags of the tests ask for more:
//
//	go test ./checkpoint/trials -run TestRoundTrips -trials 1000 -seed 2 -v
//
// A failing trial prints its number. The flag -trial repeats one alone.
//
// Files:
//
//	draw_test.go       draws tensors, meshes, layouts and values
//	roundtrip_test.go  saves on one mesh and loads on another
//	model_test.go      draws language models, and trains them on any mesh
//	resume_test.go     resumes training, on the same mesh and on another
//	named_test.go      faults that other libraries have had
//	bad_test.go        damages checkpoints, and makes up hostile ones
//	version1_test.go   loads a checkpoint of version 1
//	crash_test.go      disturbs saves: kills, power failures, full disks, two writers
//	s3_test.go         the same on a server of S3's protocol behind a bad network
//	emergency_test.go  lets ranks save alone, and leaves some of them out
//	scale_test.go      has 1,000 ranks and a million boxes
//	process_test.go    kills processes that save
package trials
