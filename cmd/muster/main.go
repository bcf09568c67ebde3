// Command muster shows, hosts and inspects groups of processes, and launches them.
//
//	muster demo                                     # the whole story, on real processes
//	muster run -n 4 -- ./train                      # starts four ranks that find each other
//	muster serve --listen 127.0.0.1:7070            # a store for those that are started elsewhere
//	muster get model/ready --wait                   # what is in one
//
// muster help has the rest.
package main

import "os"

func main() { os.Exit(execute(os.Args[1:])) }
