// SPDX-License-Identifier: Apache-2.0

// Package vision reads labelled images and makes batches of them.
//
// The pieces, from the disk up:
//
//   - A [Set] is a data set: images of bytes with labels. [Open] finds out what
//     a directory holds: MNIST's IDX files, CIFAR's binary files, or a directory
//     of images a class. [Digits] is a small real one that is part of the
//     program.
//   - A [Transform] makes an image of an image: it cuts, scales, mirrors. It is
//     a pure function of the image and a generator, and [Apply] derives the
//     generator from the sample's [data.Key] and a seed. So the same sample of
//     an epoch is the same pixels whoever makes it, whenever: on another rank,
//     by another worker, after a resume.
//   - [Collate] makes a [Batch] of samples: float32, normalised, [n, c, h, w].
//
// [data.Loader] runs the three in the background.
//
// Nothing here trusts a file. What a reader finds wrong it says at once, with
// the file and the place, as an [*Error]; an image that cannot be decoded is an
// error of that sample alone, for the loader to skip or to stop at.
//
// Images are of 8 bits a channel, row by row with the channels of a pixel
// together. Sets are immutable and may be shared by goroutines; nobody writes
// into the pixels of an image that was handed out. Close a Set that came from
// files.
package vision
