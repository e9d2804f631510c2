// An object store on loopback: GET and HEAD with Range and If-Match, and listings, as S3 answers them.
//
//     server FOLDER DELAY RATE LATE LATE_S
//
// It prints its port. Buckets are the folders in FOLDER. An answer begins DELAY seconds after its request. RATE is the
// bytes per second of all answers together; 0: no limit. The share LATE of the answers comes LATE_S seconds later. One thread with epoll and sendfile takes little of the cores.
// GET /-/stats gives the counts and the CPU time of the server.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <unordered_map>

using std::string;
namespace fs = std::filesystem;

enum class State { reading, waiting, sending };

struct Connection {
    int fd = -1, file = -1;
    long id = 0;
    State state = State::reading;
    bool wants_write = false;
    string in, head;
    size_t head_sent = 0, left = 0;
    off_t at = 0;
    ~Connection() {
        if (file >= 0) close(file);
        close(fd);
    }
};

struct Due {
    double when;
    long id;
    bool operator<(const Due& other) const { return when > other.when; }
};

struct Request {
    string method, path, text;
    std::map<string, string> query;
};

static string root;
static double delay_s = 0, rate = 0, free_at = 0, late = 0, late_s = 0;
static std::mt19937 random_bits(1);
static int poller = -1, in_flight = 0, most_in_flight = 0;
static long requests = 0, last_id = 0;
static double sent_bytes = 0;
static std::unordered_map<long, std::unique_ptr<Connection>> connections;
static std::priority_queue<Due> due;

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static string unquoted(const string& text) {
    string found;
    for (size_t i = 0; i < text.size(); i++) {
        if (text[i] == '%' && i + 2 < text.size()) {
            found += char(strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
            i += 2;
        } else {
            found += text[i];
        }
    }
    return found;
}

static string header(const string& text, const char* name) {
    for (size_t line = text.find("\r\n"); line != string::npos; line = text.find("\r\n", line + 2)) {
        const char* begin = text.c_str() + line + 2;
        size_t length = strlen(name);
        if (strncasecmp(begin, name, length) || begin[length] != ':') continue;
        begin += length + 1;
        while (*begin == ' ') begin++;
        return string(begin, strcspn(begin, "\r"));
    }
    return "";
}

static Request parsed(const string& text) {
    Request found;
    size_t space = text.find(' '), end = text.find(' ', space + 1);
    string target = text.substr(space + 1, end - space - 1), query;
    found.method = text.substr(0, space);
    size_t mark = target.find('?');
    if (mark != string::npos) query = target.substr(mark + 1);
    found.path = unquoted(target.substr(0, mark));
    while (!query.empty()) {
        string pair = query.substr(0, query.find('&'));
        query = pair.size() == query.size() ? "" : query.substr(pair.size() + 1);
        size_t equals = std::min(pair.find('='), pair.size());
        found.query[pair.substr(0, equals)] = equals < pair.size() ? unquoted(pair.substr(equals + 1)) : "";
    }
    found.text = text;
    return found;
}

static string moment(time_t t, const char* form) {
    char text[64];
    strftime(text, sizeof text, form, gmtime(&t));
    return text;
}

static string etag_of(const struct stat& status) {
    char text[64];
    snprintf(text, sizeof text, "\"%lx-%lx\"", long(status.st_mtime), long(status.st_size));
    return text;
}

static void watch(Connection& c, bool writing) {
    if (c.wants_write == writing) return;
    c.wants_write = writing;
    epoll_event event{};
    event.events = EPOLLIN | (writing ? EPOLLOUT : 0u);
    event.data.u64 = c.id;
    epoll_ctl(poller, EPOLL_CTL_MOD, c.fd, &event);
}

static void later(Connection& c, double seconds) {
    c.state = State::waiting;
    due.push({now() + seconds, c.id});
}

static void answer(Connection& c, const string& status, const string& headers, const string& body, bool head) {
    c.head = "HTTP/1.1 " + status + "\r\nx-amz-request-id: 1\r\nDate: " + moment(time(nullptr), "%a, %d %b %Y %T GMT") +
             "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + (head ? "" : body);
}

static void listing(Connection& c, const Request& request) {
    string bucket = request.path.substr(1), prefix, after, entries;
    while (!bucket.empty() && bucket.back() == '/') bucket.pop_back();
    auto value = [&](const char* key) {
        auto found = request.query.find(key);
        return found == request.query.end() ? string() : found->second;
    };
    prefix = value("prefix");
    after = std::max(value("start-after"), value("marker"));
    bool nested = value("delimiter").empty();
    std::set<string> keys;
    fs::path folder = fs::path(root) / bucket / prefix.substr(0, prefix.rfind('/') + 1);
    string base = (fs::path(root) / bucket).string() + "/";
    std::error_code none;
    if (nested) {
        for (auto& item : fs::recursive_directory_iterator(folder, none))
            if (item.is_regular_file()) keys.insert(item.path().string().substr(base.size()));
    } else {
        for (auto& item : fs::directory_iterator(folder, none))
            keys.insert(item.path().string().substr(base.size()) + (item.is_directory() ? "/" : ""));
    }
    for (const string& key : keys) {
        if (key.compare(0, prefix.size(), prefix) || key <= after) continue;
        struct stat status;
        if (key.back() == '/') {
            entries += "<CommonPrefixes><Prefix>" + key + "</Prefix></CommonPrefixes>";
        } else if (!stat((base + key).c_str(), &status)) {
            entries += "<Contents><Key>" + key + "</Key><LastModified>" + moment(status.st_mtime, "%FT%T.000Z") +
                       "</LastModified><ETag>" + etag_of(status) + "</ETag><Size>" + std::to_string(status.st_size) +
                       "</Size><StorageClass>STANDARD</StorageClass></Contents>";
        }
    }
    string body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><Name>" + bucket + "</Name><Prefix>" + prefix +
                  "</Prefix><KeyCount>" + std::to_string(keys.size()) + "</KeyCount><MaxKeys>1000000</MaxKeys>" +
                  "<IsTruncated>false</IsTruncated>" + entries + "</ListBucketResult>";
    answer(c, "200 OK", "Content-Type: application/xml\r\n", body, request.method == "HEAD");
}

static void object(Connection& c, const Request& request) {
    bool head = request.method == "HEAD";
    int file = open((root + request.path).c_str(), O_RDONLY);
    struct stat status;
    if (file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode)) {
        if (file >= 0) close(file);
        return answer(c, "404 Not Found", "", "<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>", head);
    }
    string wanted = header(request.text, "If-Match"), range = header(request.text, "Range");
    long size = status.st_size, begin = 0, end = size;
    bool part = range.compare(0, 6, "bytes=") == 0;
    if (part) {
        size_t dash = range.find('-');
        bool tail = dash == 6;
        begin = tail ? std::max(0L, size - atol(range.c_str() + 7)) : atol(range.c_str() + 6);
        if (!tail && dash + 1 < range.size()) end = std::min(size, atol(range.c_str() + dash + 1) + 1);
    }
    bool outside = part && begin >= size, changed = !wanted.empty() && wanted != etag_of(status);
    if (outside || changed) {
        close(file);
        return answer(c, changed ? "412 Precondition Failed" : "416 Range Not Satisfiable", "", "", head);
    }
    string headers = "Accept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\nETag: " + etag_of(status) +
                     "\r\nLast-Modified: " + moment(status.st_mtime, "%a, %d %b %Y %T GMT") + "\r\n";
    if (part)
        headers += "Content-Range: bytes " + std::to_string(begin) + "-" + std::to_string(end - 1) + "/" +
                   std::to_string(size) + "\r\n";
    c.head = string("HTTP/1.1 ") + (part ? "206 Partial Content" : "200 OK") +
             "\r\nx-amz-request-id: 1\r\nContent-Length: " + std::to_string(end - begin) + "\r\n" + headers + "\r\n";
    if (head) {
        close(file);
        return;
    }
    c.file = file, c.at = begin, c.left = size_t(end - begin);
}

static string stats() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + 1e-6 * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    char text[200];
    snprintf(text, sizeof text, "{\"requests\": %ld, \"bytes\": %.0f, \"cpu_s\": %.6f, \"most_in_flight\": %d}", requests,
             sent_bytes, cpu, most_in_flight);
    return text;
}

// Whether the connection is still there.
static bool serve(Connection& c);

static bool send_on(Connection& c) {
    c.state = State::sending;
    while (c.head_sent < c.head.size()) {
        int flags = MSG_NOSIGNAL | (c.left ? MSG_MORE : 0);
        ssize_t n = send(c.fd, c.head.data() + c.head_sent, c.head.size() - c.head_sent, flags);
        if (n < 0 && errno != EAGAIN) return false;
        if (n < 0) return watch(c, true), true;
        c.head_sent += n;
    }
    while (c.left) {
        size_t piece = std::min(c.left, size_t(rate > 0 ? 1 << 16 : 1 << 20));
        if (rate > 0 && free_at > now() + 0.001) {
            watch(c, false);
            return later(c, free_at - now()), true;
        }
        ssize_t n = sendfile(c.fd, c.file, &c.at, piece);
        if (n < 0 && errno == EAGAIN) return watch(c, true), true;
        if (n <= 0) return false;
        c.left -= n, sent_bytes += n;
        if (rate > 0) free_at = std::max(free_at, now()) + n / rate;
    }
    if (c.file >= 0) close(c.file);
    c.file = -1, c.head_sent = 0;
    c.state = State::reading;
    in_flight--;
    watch(c, false);
    return serve(c);
}

static bool serve(Connection& c) {
    size_t end = c.in.find("\r\n\r\n");
    if (c.state != State::reading || end == string::npos) return true;
    Request request = parsed(c.in.substr(0, end + 2));
    c.in.erase(0, end + 4);
    most_in_flight = std::max(most_in_flight, ++in_flight);
    if (request.path == "/-/stats") {
        answer(c, "200 OK", "", stats(), false);
        return send_on(c);
    }
    requests++;
    bool reads = request.method == "GET" || request.method == "HEAD";
    bool lists = request.path.find('/', 1) >= request.path.size() - 1;
    if (!reads)
        answer(c, "501 Not Implemented", "", "", false);
    else if (lists)
        listing(c, request);
    else
        object(c, request);
    later(c, delay_s + (random_bits() < late * random_bits.max() ? late_s : 0));
    return true;
}

static bool receive(Connection& c) {
    char buffer[1 << 16];
    for (;;) {
        ssize_t n = recv(c.fd, buffer, sizeof buffer, 0);
        if (n > 0) c.in.append(buffer, n);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
        if (n < ssize_t(sizeof buffer)) return serve(c);
    }
}

static void drop(long id) {
    auto found = connections.find(id);
    if (found == connections.end()) return;
    in_flight -= found->second->state != State::reading;
    connections.erase(found);
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        auto c = std::make_unique<Connection>();
        c->fd = fd, c->id = ++last_id;
        epoll_event event{};
        event.events = EPOLLIN, event.data.u64 = c->id;
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
        connections[c->id] = std::move(c);
    }
}

int main(int count, char** words) {
    if (count != 6) return fprintf(stderr, "server FOLDER DELAY RATE LATE LATE_S\n"), 2;
    root = words[1], delay_s = atof(words[2]), rate = atof(words[3]), late = atof(words[4]), late_s = atof(words[5]);
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    socklen_t length = sizeof address;
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (sockaddr*)&address, length) || listen(listener, 1024)) return perror("server"), 1;
    getsockname(listener, (sockaddr*)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    poller = epoll_create1(0);
    epoll_event event{}, events[256];
    event.events = EPOLLIN;
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int wait = due.empty() ? -1 : std::max(0, int(1000 * (due.top().when - now()) + 0.999));
        int ready = epoll_wait(poller, events, 256, wait);
        for (int i = 0; i < ready; i++) {
            long id = long(events[i].data.u64);
            if (!id) {
                accept_all(listener);
                continue;
            }
            auto found = connections.find(id);
            if (found == connections.end()) continue;
            Connection& c = *found->second;
            bool alive = !(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || receive(c);
            if (alive && c.state == State::sending && events[i].events & EPOLLOUT) alive = send_on(c);
            if (!alive) drop(id);
        }
        while (!due.empty() && due.top().when <= now()) {
            long id = due.top().id;
            due.pop();
            auto found = connections.find(id);
            if (found != connections.end() && !send_on(*found->second)) drop(id);
        }
    }
}
