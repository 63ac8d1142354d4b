"""What runs inside Redis: each function checks which server it is and reads or writes in one atomic step.

Here a store run id is called reign and a store generation tenure, as in the fields of the hashes.
"""

from __future__ import annotations

import hashlib

_FUNCTIONS = """
local function reign()
  local info = redis.call('INFO', 'server', 'replication')
  local role = string.match(info, 'role:(%a+)')
  local process, history = string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)')
  if role ~= 'master' or not process or not history then return '' end
  return process .. '.' .. history
end

local function following(number, salt) return string.format('%.0f', number + 1) .. '.' .. salt end

local function who() return reign() end

-- keys: account; args: reign, version known to the caller
local function load(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  local found = redis.call('HMGET', keys[1], 'version', 'tenure')
  if not found[1] then return {'none'} end
  if found[1] == args[2] then return {'same', found[1], found[2]} end
  return {'found', found[1], found[2], redis.call('HGET', keys[1], 'object')}
end

-- keys: account; args: reign, tenure
local function take(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  local found = redis.call('HMGET', keys[1], 'version', 'tenure', 'object')
  if not found[1] then return {'none'} end
  local version = found[1]
  if found[2] == args[2] then
    version = following(string.match(version, '^(%d+)%.(%x+)$'))
    redis.call('HSET', keys[1], 'version', version)
  end
  return {'found', version, found[2], found[3]}
end

-- keys: account, list; args: reign, tenure, version that must be there, salt, uid, name, channel, adopt or keep, object
local function save(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  local found = redis.call('HMGET', keys[1], 'version', 'tenure')
  if (found[1] or '') ~= args[3] then return {'conflict'} end
  local number, salt = 0, args[4]
  if found[1] then
    if (found[2] == args[2]) ~= (args[8] == 'keep') then return {'conflict'} end
    number, salt = string.match(found[1], '^(%d+)%.(%x+)$')
  end
  local version = following(number, salt)
  redis.call('HSET', keys[1], 'version', version, 'tenure', args[2], 'object', args[9])
  redis.call('HSET', keys[2], args[5], args[6])
  redis.call('PUBLISH', args[7], args[5] .. ' ' .. version)
  return {'written', version}
end

-- keys: account, list; args: reign, uid, channel
local function delete(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  redis.call('HDEL', keys[2], args[2])
  if redis.call('DEL', keys[1]) > 0 then redis.call('PUBLISH', args[3], args[2] .. ' ') end
  return {'deleted'}
end

-- keys: list; args: reign
local function list(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  return {'listed', redis.call('HGETALL', keys[1])}
end

-- keys: accounts; args: reign
local function versions(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  local answer = {'versions'}
  for i, key in ipairs(keys) do answer[i + 1] = redis.call('HGET', key, 'version') or '' end
  return answer
end
"""

# Two versions of the program serve side by side while it is rolled out: each has functions of its own.
LIBRARY = "seedquota_" + hashlib.sha256(_FUNCTIONS.encode()).hexdigest()[:12]
_FLAGS = {
    "who": "'no-writes'",
    "load": "'no-writes'",
    "list": "'no-writes'",
    "versions": "'no-writes'",
    "take": "",
    "save": "",
    "delete": "'allow-oom'",
}
LIBRARY_CODE = f"#!lua name={LIBRARY}\n{_FUNCTIONS}\n" + "".join(
    f"redis.register_function{{function_name='{LIBRARY}_{name}', callback={name}, flags={{{flags}}}}}\n"
    for name, flags in _FLAGS.items()
)
