// CL.THROTTLE with go-redis. Arguments: URL of the server, URL of a server that is down.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

type Decision struct {
	Limited                int64
	Limit, Remaining       int64
	RetryAfter, ResetAfter int64 // seconds
}

type Limiter struct {
	Client                  *redis.Client
	MaxBurst, Count, Period int64
}

// NewLimiter keeps a pool of connections, which are opened when they are needed. Timeouts are short, because a slow
// limiter is of no use. There is no retry, because a call whose reply was lost may have been admitted.
func NewLimiter(url string, maxBurst, count, period int64) (*Limiter, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.DialTimeout = 500 * time.Millisecond
	options.DialerRetries = 1
	options.ReadTimeout = 500 * time.Millisecond
	options.WriteTimeout = 500 * time.Millisecond
	options.MaxRetries = -1
	return &Limiter{redis.NewClient(options), maxBurst, count, period}, nil
}

// Throttle takes quantity units of key.
func (l *Limiter) Throttle(ctx context.Context, key string, quantity int64) (Decision, error) {
	n, err := l.Client.Do(ctx, "CL.THROTTLE", key, l.MaxBurst, l.Count, l.Period, quantity).Int64Slice()
	if err != nil {
		return Decision{}, err
	}
	if len(n) != 5 {
		return Decision{}, fmt.Errorf("CL.THROTTLE answered %d integers", len(n))
	}
	return Decision{n[0], n[1], n[2], n[3], n[4]}, nil
}

// cannotDecide matches the error replies of a server that does not decide now.
var cannotDecide = regexp.MustCompile("^(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN|" +
	"ERR max number of clients) ")

// isUnavailable tells whether no server decides now. All other errors are errors of the call or of the setup: they must
// be seen.
func isUnavailable(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, redis.ErrPoolTimeout) ||
		cannotDecide.MatchString(err.Error())
}

// handle serves an HTTP request: it returns the status and header of its response.
func handle(ctx context.Context, limiter *Limiter, key string, failOpen bool) (int, http.Header) {
	header := http.Header{}
	decision, err := limiter.Throttle(ctx, key, 1)
	switch {
	case err != nil && !isUnavailable(err):
		log.Printf("%s: %v", key, err)
		return http.StatusInternalServerError, header
	case err != nil && failOpen:
		log.Printf("no decision on %s: %v", key, err)
		return http.StatusOK, header
	case err != nil:
		log.Printf("no decision on %s: %v", key, err)
		return http.StatusServiceUnavailable, header
	case decision.Limited == 1:
		header.Set("Retry-After", strconv.FormatInt(decision.RetryAfter, 10))
		return http.StatusTooManyRequests, header
	default:
		return http.StatusOK, header
	}
}

func argument(i int, otherwise string) string {
	if len(os.Args) > i {
		return os.Args[i]
	}
	return otherwise
}

func main() {
	ctx := context.Background()
	key := "example:go"
	limiter, err := NewLimiter(argument(1, "redis://127.0.0.1:6379"), 2, 30, 60) // 3 at once, then one every 2 seconds
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Client.Close()
	limiter.Client.Del(ctx, key)
	for range 4 {
		d, err := limiter.Throttle(ctx, key, 1)
		if err != nil {
			log.Fatal(err)
		}
		outcome := "admitted"
		if d.Limited == 1 {
			outcome = "refused"
		}
		fmt.Printf("%s: limit %d, remaining %d, retry after %d, reset after %d\n",
			outcome, d.Limit, d.Remaining, d.RetryAfter, d.ResetAfter)
	}
	status, header := handle(ctx, limiter, key, false)
	fmt.Printf("a request now: %d, Retry-After: %s\n", status, header.Get("Retry-After"))
	wait, _ := strconv.Atoi(header.Get("Retry-After"))
	time.Sleep(time.Duration(wait) * time.Second)
	status, _ = handle(ctx, limiter, key, false)
	fmt.Printf("a request after the wait: %d\n", status)

	limiter.Client.Set(ctx, key, "of another type", 0)
	status, _ = handle(ctx, limiter, key, true)
	fmt.Printf("an error of the call, fail open: %d\n", status)
	limiter.Client.Del(ctx, key)

	down, err := NewLimiter(argument(2, "redis://127.0.0.1:1"), 2, 30, 60) // nothing listens there
	if err != nil {
		log.Fatal(err)
	}
	defer down.Client.Close()
	status, _ = handle(ctx, down, key, true)
	fmt.Printf("server down, fail open: %d\n", status)
	status, _ = handle(ctx, down, key, false)
	fmt.Printf("server down, fail closed: %d\n", status)
}
