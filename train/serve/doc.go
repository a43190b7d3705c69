// SPDX-License-Identifier: Apache-2.0

// Package serve answers requests over HTTP with a trained model, in the words of OpenAI's API:
// completions, chats, embeddings, and predictions. It is for trying a model and for small use.
//
// # Mental model
//
// A [Server] has one train.Model. Each request is checked as a whole before anything is
// computed: a field that would change the result and is not honoured is refused by its name.
// Passes of the model run one at a time. Requests take turns, pass by pass, in the order in
// which they ask: a long text delays a short one by a token, not by all of it.
//
// What a stranger may cost is bounded: bytes of a request, requests under way, tokens and texts
// of a request, time. A client that goes away ends its request.
//
// # Files
//
//	server.go       who may ask, the limits, errors
//	turns.go        requests take turns
//	request.go      bodies of requests, their fields
//	completion.go   texts and chats, whole or streamed
//	prediction.go   vectors and predictions
package serve
