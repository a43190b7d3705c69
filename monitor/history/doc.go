// SPDX-License-Identifier: Apache-2.0

// Package history keeps what a run came to, step by step, in a file of the run's directory.
//
// # Mental model
//
// A history is a list of records in a file of JSON lines, history.jsonl. Rank 0 writes the
// file while the run goes on ([Writer]), and everything that shows a run reads it ([Read]).
// Each record is an object on a line of its own, and its member "kind" says what it is:
//
//	run    a process of the run began: [Run]
//	step   a step was done, or several, see below: [Step]
//	eval   the model was evaluated: [Evaluation]
//	saved  a checkpoint was written: [Saved]
//	note   something that the user should know: [Note]
//	ranks  where the time of each rank went: [Ranks]
//	value  a number that the program logs: [Value]
//	sample a text, a picture or a histogram that the program logs: [Sample]
//	lost   a process went on from an older step: [Lost]
//	end    the run did its last step: [End]
//
// Times are seconds since 1970. A number that is not finite is null. Python reads a history
// with pandas.read_json(path, lines=True), or with a loop over json.loads.
//
// # Bounds
//
// A history has at most [MaxSteps] records of steps. When there would be more, each two
// neighbours become one, and from then on a record stands for twice as many steps. Its loss
// is the mean of their losses, its gradient norm is the largest, its size and its seconds are
// sums. Records of each other kind are at most [MaxOthers]: of evaluations every second is left
// out when there would be more, of the others the oldest are. Lost records become one. Of records of ranks each two neighbours become
// one when there would be more than some 260,000 numbers in them; all of their numbers are sums or
// those of the last. Of values every second of a name is left out when there would be more than
// [MaxValues], and values of more than [MaxNames] names are not kept. Of samples every second of a name
// is left out when there would be more than [MaxSamples], or more than 4 MiB of them.
//
// # Who waits for whom
//
// Training never waits for the file. A Writer keeps the records in memory, and a goroutine
// writes the file once a second. After a kill, the last second is missing, and so are the last
// steps of a record that was to stand for several. If the disk is full or gone, training goes
// on, and [Writer.Err] tells once.
//
// # Files
//
//	record.go   the records, and their lines
//	ranks.go    records about each rank, and values
//	sample.go   texts, pictures and histograms
//	sparkline.go a picture of the loss in characters
//	writer.go   Writer: bounds, and the file
//	reader.go   Read, and what a history knows as a whole
//	follower.go Follower: a history that grows
package history
