// What docs/clients.md says about go-redis, with a server with the module: go run waiting.go ADDRESS
package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func check(what string, ok bool) {
	if !ok {
		fmt.Println("not so:", what)
		os.Exit(1)
	}
}

// A client with the default options but for these.
func connect(options redis.Options) *redis.Client {
	options.Addr = os.Args[1]
	return redis.NewClient(&options)
}

var inspector *redis.Client

// A number of INFO, 0 if it is not there.
func info(section, pattern string) int {
	found := regexp.MustCompile(pattern).FindStringSubmatch(inspector.Info(ctx, section).Val())
	if found == nil {
		return 0
	}
	number, _ := strconv.Atoi(found[1])
	return number
}

// The connections that were made: one for each time that a call is sent whose last connection was closed.
func connections() int { return info("stats", `total_connections_received:(\d+)`) }

func waitUntil(what string, condition func() bool) {
	for range 3000 {
		if condition() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	check(what, false)
}

func waiting(clients int) func() bool {
	return func() bool { return info("clients", `blocked_clients:(\d+)`) == clients }
}

// Waits in the server for a unit that comes in an hour.
func wait(client *redis.Client, seconds string) error {
	return client.Do(ctx, "CL.BTHROTTLE", "k", 0, 1, 3600, 1, seconds).Err()
}

func main() {
	inspector = connect(redis.Options{})
	check("a read timeout of 3 s", inspector.Options().ReadTimeout == 3*time.Second)
	check("retries", inspector.Options().MaxRetries > 0)
	inspector.Do(ctx, "CL.THROTTLE", "k", 0, 1, 3600)

	before := connections()
	err := wait(connect(redis.Options{ReadTimeout: 300 * time.Millisecond}), "0")
	check("a client that gives up calls again", err != nil && connections() > before+1)
	waitUntil("a client that gives up closes its connection", waiting(0))

	before = connections()
	err = wait(connect(redis.Options{ReadTimeout: 300 * time.Millisecond, MaxRetries: -1}), "0")
	check("MaxRetries: -1 switches retries off", err != nil && connections() == before+1)

	patient := connect(redis.Options{ReadTimeout: 35 * time.Second, MaxRetries: -1, PoolSize: 2, PoolTimeout: time.Second})
	check("the null is redis.Nil", wait(patient, "0.1") == redis.Nil)

	done := make(chan error)
	go func() { done <- wait(patient, "0") }()
	waitUntil("a waiting call", waiting(1))
	look := func() error { return patient.Do(ctx, "CL.PEEK", "other", 0, 1, 3600).Err() }
	check("a pool takes another connection for another call", look() == nil)
	go func() { done <- wait(patient, "0") }()
	waitUntil("two waiting calls", waiting(2))
	check("a pool must be larger than the number of waiting calls", look() != nil)
	for range 2 {
		inspector.Do(ctx, "CL.REFUND", "k", 0, 1, 3600)
		check("a waiting call is admitted", <-done == nil)
	}
	fmt.Println("as docs/clients.md says")
}
