package main

var Main = main
