// Command muster launches groups of processes, hosts their stores, and shows their state.
//
//	muster demo                                     # a demonstration on real processes
//	muster run -n 4 -- ./train                      # starts four ranks that find each other
//	muster serve --listen 127.0.0.1:7070            # a store for ranks that are started elsewhere
//	muster get model/ready --wait                   # reads a key of a store
//
// Run muster help for all commands.
package main

import "os"

func main() { os.Exit(execute(os.Args[1:])) }
